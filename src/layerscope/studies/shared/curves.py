"""Per-prompt values over layers: means and differences with 95 % intervals, valleys, and how they are put into words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.columns import PROFILE, names
from layerscope.core.conventions import Reading
from layerscope.core.sites import layer_ranges, site_of
from layerscope.core.statistics import INTERVAL, Interval
from layerscope.core.valley import find_valley
from layerscope.metrics import metrics, on_log_scale, shown_series
from layerscope.metrics.base import mean_over_prompts
from layerscope.metrics.intervals import interval
from layerscope.profiling import Profile
from layerscope.report.drawing import (
    COLORS,
    color_key,
    escape_math,
    fill_band,
    logarithmic,
    new_figure,
    panel_axes,
    quiet,
    sequential,
    styles,
)


def model_colors(manifest: dict[str, Any], labels: Sequence[str]) -> dict[str, str]:
    """A color for each model: its family's own where it has one."""
    identities = manifest.get("conventions", {}).get("models", {})
    looks = styles([(str(identities.get(label, {}).get("family", "")), label) for label in labels])
    return {label: COLORS[look.color] for label, look in zip(labels, looks, strict=True)}


def band(axis: Any, rows: pd.DataFrame, color: Any, x: str = "depth", alpha: float = 0.16, **line: Any) -> None:
    """One curve with its 95 % band."""
    rows = rows.sort_values(x)
    axis.plot(rows[x], rows["value"], color=color, **{"linewidth": 1.5, **line})
    fill_band(axis, rows, color, x, alpha)


def subtitle(manifest: dict[str, Any]) -> str:
    """What the figure rests on, in a line."""
    conventions, corpus = manifest["conventions"], manifest.get("corpus") or {}
    parts = [f"{corpus.get('name', 'texts')}, {manifest.get('texts')} prompts"] if corpus else []
    if "max_length" in conventions:
        parts.append(Reading.of(manifest).in_words)
    of = f"{conventions['of']}: " if conventions.get("of") else ""
    return escape_math(of + ", ".join([*parts, "95 % bands"]))


def wanted_panels(table: pd.DataFrame) -> list[tuple[str, str, str]]:
    """The panels that a table has values for, in reading order."""
    measured, known = set(zip(table["metric"], table["sink"], strict=True)), metrics()
    shown = [series for series in shown_series(table["metric"]) if series in measured]
    return [(name, sink, known[name].info.title if sink == "keep" else "… without the sink token") for name, sink in shown]


def draw_panel(axis: Any, table: pd.DataFrame, panel: tuple[str, str, str], by: str, colors: Mapping[Any, Any]) -> None:
    """One metric over depth, a line with its band per value of `by`."""
    metric, sink, title = panel
    chosen = table[(table["metric"] == metric) & (table["sink"] == sink) & (table["normalization"] == "raw")]
    for name, color in colors.items():
        rows = chosen[chosen[by] == name].dropna(subset=["value"])
        if len(rows):
            band(axis, rows, color, alpha=0.13)
    known = metrics().get(metric)
    quiet(axis, title, "depth", "" if known is None else known.info.unit)
    if on_log_scale(metric):
        logarithmic(axis)


def draw_ordered(table: pd.DataFrame, labels: Sequence[str], shown: Sequence[str], key: str, manifest: dict[str, Any]) -> Any:
    """A panel per metric; models in an order (steps, sizes) that their colors follow, named in a bar."""
    panels = wanted_panels(table)
    columns = min(3, len(panels))
    figure = new_figure(3.6 * columns + 1.2, 2.7 * -(-len(panels) // columns) + 0.5)
    axes = panel_axes(figure, len(panels), columns)
    colors = dict(zip(labels, sequential(len(labels)), strict=True))
    for axis, panel in zip(axes, panels, strict=True):
        draw_panel(axis, table, panel, "model", colors)
    _same_scale(axes, panels)
    color_key(figure, axes, [escape_math(name) for name in shown], key)
    figure.suptitle(subtitle(manifest), fontsize=9)
    return figure


def _same_scale(axes: Any, panels: list[tuple[str, str, str]]) -> None:
    """Prompt entropy with and without the sink on one scale: that is what they are compared on."""
    both = [axis for axis, panel in zip(axes, panels, strict=False) if panel[0] == "prompt_entropy"]
    if len(both) > 1:
        low, high = min(a.get_ylim()[0] for a in both), max(a.get_ylim()[1] for a in both)
        for axis in both:
            axis.set_ylim(low, high)


VALLEY = "called one where it is at least 5 % of its shoulder deep and clear of noise over prompts"

VALUES = ["model", *names(PROFILE)]


def mean_of(values: np.ndarray, seed: int) -> Interval:
    """The mean of one number per prompt; undefined ones are left out."""
    estimate = mean_over_prompts(np.asarray(values, dtype=float), 1)
    return Interval(estimate.value, *interval(estimate, seed), estimate.n)


def by_layer(prompts: pd.DataFrame, metric: str, sink: str, texts: int | None = None) -> pd.DataFrame:
    """Per-prompt values of a profile (`run.prompts`): a row per prompt number, a column per site in the pass's order.

    With `texts`, there is a row for each of that many texts, empty where one had no token: rows of several models then match.
    """
    column = f"{metric}_sink_dropped" if sink == "drop" else metric
    sites = list(dict.fromkeys(prompts["site"]))
    table = prompts.pivot(index="prompt", columns="site", values=column).reindex(columns=sites)
    return table if texts is None else table.reindex(range(texts))


def at_depths(values: np.ndarray, have: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Values (prompts, layers) of a model at other depths: the straight line between the two nearest layers.

    >>> at_depths(np.array([[0.0, 2.0]]), np.array([0.0, 1.0]), np.array([0.0, 0.5, 1.0]))
    array([[0., 1., 2.]])
    """
    right = np.clip(np.searchsorted(have, want), 1, len(have) - 1)
    share = (want - have[right - 1]) / (have[right] - have[right - 1])
    # where a depth is that of a layer, its value stands as it is: NaN of a neighbor must not reach it
    mixed = values[:, right - 1] * (1 - share) + values[:, right] * share
    mixed = np.where(share == 0, values[:, right - 1], mixed)
    return np.where(share == 1, values[:, right], mixed)


@dataclass(frozen=True)
class Dip:
    """The deepest point of a mean curve below the lower of its two shoulders, in the metric's unit, with its interval.

    `falls` is the fall of each prompt from that shoulder, NaN where it has no value.
    """

    place: int
    value: float
    shoulder: float
    depth: Interval
    falls: np.ndarray
    is_valley: bool = False


def dip_of(values: np.ndarray, seed: int) -> Dip:
    """The dip of the mean over prompts (rows) along layers (columns).

    Its place and shoulders are those of the mean curve; the interval is over prompts, with the places fixed. A curve without a
    dip has depth 0.
    """
    whole = np.isfinite(values).all(axis=1)
    falls = np.full(len(values), np.nan)
    if not whole.any() or values.shape[1] < 3:
        return Dip(0, math.nan, math.nan, Interval(math.nan, n=int(whole.sum())), falls)
    found = find_valley(values[whole].mean(axis=0), samples=values[whole])
    assert found is not None, "the curve has three points or more, all known"
    falls[whole] = values[whole, found.shoulder_place] - values[whole, found.place]
    depth = mean_of(falls, seed)
    sure = found.clear and depth.low > 0  # a verdict needs an interval: one prompt has none
    return Dip(found.place, found.value, found.shoulder, depth, falls, sure)


@dataclass(frozen=True)
class Valleys:
    """The dips of one model's prompt entropy with the sink token kept and dropped."""

    label: str
    layers: int
    kept: Dip
    dropped: Dip

    @classmethod
    def of(cls, run: Profile, label: str, seed: int, texts: int) -> Valleys:
        """From a profile of whole layers on so many texts."""
        kept, dropped = (dip_of(by_layer(run.prompts, "prompt_entropy", s, texts).to_numpy(), seed) for s in ("keep", "drop"))
        return cls(label, int(run.manifest["model"]["n_blocks"]), kept, dropped)

    def sentence(self) -> str:
        """What it is, no surer than its intervals."""
        kept, dropped = (dip.depth.format(signed=False) for dip in (self.kept, self.dropped))
        if not self.kept.is_valley:
            text = f"{self.label} has no clear valley: its deepest dip is {kept} nats"
            return f"{text}, without the sink token {dropped}."
        text = f"{self.label} has a valley at layer {self.kept.place} of {self.layers}, {kept} nats deep"
        if self.dropped.is_valley:
            return f"{text}; without the sink token one remains at layer {self.dropped.place}, {dropped}."
        return f"{text}; without the sink token none is left ({dropped})."

    def rows(self, **more: object) -> list[dict[str, object]]:
        """Rows of a table: the depth of the dip, at its layer."""
        out = []
        for sink, dip in (("keep", self.kept), ("drop", self.dropped)):
            place = {"model": self.label, "site": site_of(dip.place), "layer": dip.place, "depth": dip.place / self.layers}
            out.append({**more, **place, "metric": "valley_depth", "normalization": "raw", "sink": sink, **dip.depth.columns})
        return out


def deeper(one: Dip, other: Dip, seed: int) -> Interval:
    """How much deeper the other dip is, prompt by prompt; both over the same prompts."""
    return mean_of(other.falls - one.falls, seed)


def profile_rows(run: Profile, label: str, **more: object) -> pd.DataFrame:
    """A profile's table with the model's name: raw values, and prompt entropy divided by the log of the length as well."""
    table = run.table
    wanted = (table["normalization"] == "raw") | ((table["metric"] == "prompt_entropy") & (table["normalization"] == "logN"))
    rows = table[wanted].assign(model=label, **more)  # type: ignore[arg-type]
    return rows[[*more, *VALUES]]


INVARIANCE = {"infonce": -1, "lidar": 1, "dime": 1}  # the sign of more invariance to augmentation


def invariance(base: Profile, other: Profile, names: tuple[str, str]) -> list[str]:
    """What the metrics of augmented views say of two models, by depth; nothing where none was measured in both."""
    parts, signs = [], []
    for metric, sign in INVARIANCE.items():
        one, two = (_view_curve(run, metric) for run in (base, other))
        if one is None or two is None:
            continue
        want = one["depth"].to_numpy()
        value, low, high = (np.interp(want, two["depth"], two[name]) for name in ("value", *INTERVAL))
        difference = value - one["value"].to_numpy()
        other_low, other_high = (one[name].to_numpy() for name in INTERVAL)
        apart = (low > other_high) | (high < other_low)
        more = int((apart & (sign * difference > 0)).sum())
        less = int((apart & (sign * difference < 0)).sum())
        signs.append(int(np.sign(more - less)))
        parts.append(
            f"{metrics()[metric].info.title} {difference.mean():+.3g} on average over layers (intervals apart towards more at "
            f"{more} of {len(want)}, towards less at {less})"
        )
    if not parts:
        return []
    word = {1: "more invariant", -1: "less invariant", 0: "not clearly more or less invariant"}
    whole = word[signs[0]] if len(set(signs)) == 1 else "more invariant by some metrics, not by others"
    return [f"Augmentation invariance, {names[1]} against {names[0]}: {whole}. {'; '.join(parts)}."]


def _view_curve(run: Profile, metric: str) -> pd.DataFrame | None:
    rows = run.table[(run.table["metric"] == metric) & (run.table["normalization"] == "raw")].sort_values("layer")
    rows = rows.dropna(subset=["value"])
    if len(rows) < 2:
        return None
    return rows.assign(**{name: rows[name].fillna(rows["value"]) for name in INTERVAL})


def layers(numbers: Iterable[int]) -> str:
    """Layers as ranges.

    >>> layers([2]), layers([1, 2, 4])
    ('layer 2', 'layers 1–2, 4')
    """
    given = sorted(set(numbers))
    return f"layer{'s' * (len(given) != 1)} {', '.join(layer_ranges(given))}"


def lists(words: Iterable[str]) -> str:
    """Words as a list in a sentence.

    >>> lists(["a", "b", "c"])
    'a, b and c'
    """
    given = list(words)
    return given[0] if len(given) == 1 else f"{', '.join(given[:-1])} and {given[-1]}" if given else ""


def sentence(text: str) -> str:
    """A text that starts with a capital letter."""
    return text[0].upper() + text[1:]


def in_short(answer: str) -> str:
    """The first sentence of a verdict."""
    return f"In short: {answer}."
