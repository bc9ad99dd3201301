"""Profiles of several models on the same texts: their values prompt by prompt, their valleys, and
what differs between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.statistics import INTERVAL, Interval
from layerscope.core.valley import find_valley
from layerscope.metrics import metrics
from layerscope.profiling import Profile
from layerscope.progress import Progress
from layerscope_paper.studies.shared.models import Request, Spec, profile_of
from layerscope_paper.studies.shared.numbers import (
    SINKS,
    VALUES,
    layer_table,
    mean_of,
    means_of,
    whole_layer,
)

VALLEY = "called one where it is at least 5 % of its shoulder deep and clear of noise over prompts"


def by_layer(run: Profile, metric: str, sink: str, texts: int | None = None) -> np.ndarray:
    """Per-prompt values of a profile: a row per prompt number, a column per site in the pass's
    order.

    With `texts`, there is a row for each of that many texts, empty where one had no token: rows of
    several models then match.
    """
    column = f"{metric}_sink_dropped" if sink == "drop" else metric
    sites = list(dict.fromkeys(run.prompts["site"]))
    table = run.prompts.pivot(index="prompt", columns="site", values=column).reindex(columns=sites)
    return (table if texts is None else table.reindex(range(texts))).to_numpy()


def at_depths(values: np.ndarray, have: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Values (prompts, layers) of a model at other depths: the straight line between the two
    nearest layers.

    >>> at_depths(np.array([[0.0, 2.0]]), np.array([0.0, 1.0]), np.array([0.0, 0.5, 1.0]))
    array([[0., 1., 2.]])
    """
    right = np.clip(np.searchsorted(have, want), 1, len(have) - 1)
    share = (want - have[right - 1]) / (have[right] - have[right - 1])
    # where a depth is that of a layer, its value stands as it is: NaN of a neighbor must not reach
    # it
    mixed = values[:, right - 1] * (1 - share) + values[:, right] * share
    mixed = np.where(share == 0, values[:, right - 1], mixed)
    return np.where(share == 1, values[:, right], mixed)


@dataclass(frozen=True)
class Dip:
    """The deepest point of a mean curve below the lower of its two shoulders, in the metric's unit,
    with its interval.

    `falls` is the fall of each prompt from that shoulder, NaN where it has no value.
    """

    place: int
    shoulder: float
    depth: Interval
    falls: np.ndarray
    is_valley: bool = False


def dip_of(values: np.ndarray, seed: int) -> Dip:
    """The dip of the mean over prompts (rows) along layers (columns).

    Its place and shoulders are those of the mean curve; the interval is over prompts, with the
    places fixed. A curve without a dip has depth 0.
    """
    whole = np.isfinite(values).all(axis=1)
    falls = np.full(len(values), np.nan)
    if not whole.any() or values.shape[1] < 3:
        return Dip(0, math.nan, Interval(math.nan, n=int(whole.sum())), falls)
    found = find_valley(values[whole].mean(axis=0), samples=values[whole])
    assert found is not None, "the curve has three points or more, all known"
    falls[whole] = values[whole, found.shoulder_place] - values[whole, found.place]
    depth = mean_of(falls, seed)
    sure = found.clear and depth.low > 0  # a verdict needs an interval: one prompt has none
    return Dip(found.place, found.shoulder, depth, falls, sure)


@dataclass(frozen=True)
class Valleys:
    """The dips of one model's prompt entropy with the sink token kept and dropped."""

    label: str
    layers: int
    kept: Dip
    dropped: Dip

    @property
    def by_sink(self) -> dict[str, Dip]:
        """Both dips."""
        return {"keep": self.kept, "drop": self.dropped}

    @classmethod
    def of(cls, run: Profile, label: str, seed: int, texts: int) -> Valleys:
        """From a profile of whole layers on so many texts."""
        kept, dropped = (
            dip_of(by_layer(run, "prompt_entropy", sink, texts), seed) for sink in SINKS
        )
        return cls(label, int(run.manifest["model"]["n_blocks"]), kept, dropped)

    def sentence(self) -> str:
        """What it is, no surer than its intervals."""
        kept, dropped = (dip.depth.format(signed=False) for dip in (self.kept, self.dropped))
        if not self.kept.is_valley:
            text = f"{self.label} has no clear valley: its deepest dip is {kept} nats"
            return f"{text}, without the sink token {dropped}."
        text = (
            f"{self.label} has a valley at layer {self.kept.place} of {self.layers}, {kept} nats "
            "deep"
        )
        if self.dropped.is_valley:
            return (
                f"{text}; without the sink token one remains at layer {self.dropped.place}, "
                f"{dropped}."
            )
        return f"{text}; without the sink token none is left ({dropped})."

    def rows(self, **more: object) -> list[dict[str, object]]:
        """Rows of a table: the depth of the dip, at its layer."""
        out = []
        for sink, dip in self.by_sink.items():
            place = {"model": self.label, **whole_layer(dip.place, self.layers)}
            out.append(
                {
                    **more,
                    **place,
                    "metric": "valley_depth",
                    "normalization": "raw",
                    "sink": sink,
                    **dip.depth.columns,
                }
            )
        return out


def deeper(one: Valleys, other: Valleys, seed: int) -> list[Interval]:
    """How much deeper the other dip is, prompt by prompt over the same prompts: with the sink
    token, and without it."""
    return means_of((other.by_sink[sink].falls - one.by_sink[sink].falls for sink in SINKS), seed)


def profile_rows(run: Profile, label: str, **more: object) -> pd.DataFrame:
    """A profile's table with the model's name: raw values, and prompt entropy divided by the log of
    the length as well."""
    table = run.table
    wanted = (table["normalization"] == "raw") | (
        (table["metric"] == "prompt_entropy") & (table["normalization"] == "logN")
    )
    rows = table[wanted].assign(model=label, **more)  # type: ignore[arg-type]
    return rows[[*more, *VALUES]]


# metric, normalization: what has a value per prompt
PAIRED = (("prompt_entropy", "raw"), ("prompt_entropy", "logN"), ("curvature", "raw"))


@dataclass
class Differences:
    """One model minus a base: (prompts, layers of the base) by metric, normalization and sink."""

    base: str
    other: str
    blocks: int  # of the base
    values: dict[tuple[str, str, str], np.ndarray]
    seed: int

    def overall(self, metric: str, normalization: str = "raw") -> list[Interval]:
        """The mean over layers, of each prompt first, with the sink token and without it."""
        return means_of(
            (self.values[metric, normalization, sink].mean(axis=1) for sink in SINKS), self.seed
        )

    def table(self, **more: object) -> pd.DataFrame:
        """One row per layer of the base."""
        places = [whole_layer(layer, self.blocks) for layer in range(self.blocks + 1)]
        common = {**more, "model": self.other}
        columns = [*more, *VALUES]
        return layer_table(
            self.values, ("metric", "normalization", "sink"), places, self.seed, columns, **common
        )


def _values(run: Profile, metric: str, normalization: str, sink: str, texts: int) -> np.ndarray:
    """(texts, layers); `logN` divides by the log of each prompt's number of tokens, where that is
    above 0."""
    values = by_layer(run, metric, sink, texts)
    if normalization == "raw":
        return values
    tokens = (
        run.prompts.drop_duplicates("prompt")
        .set_index("prompt")["tokens"]
        .reindex(range(texts))
        .to_numpy(dtype=float)
    )
    tokens = tokens - (1 if sink == "drop" else 0)
    by = np.where(tokens > 1, np.log(np.where(tokens > 1, tokens, 2.0)), np.nan)
    return values / by[:, None]


class Profiles(dict[str, Profile]):
    """The profiles of several models on a study's texts, by label in order."""

    def __init__(self, request: Request, runs: Mapping[str, Profile]) -> None:
        super().__init__(runs)
        self.texts = len(request.texts or ())
        self.seed = request.seed

    @cached_property
    def valleys(self) -> list[Valleys]:
        """The valley of each model's prompt entropy."""
        return [Valleys.of(run, label, self.seed, self.texts) for label, run in self.items()]

    @classmethod
    def of(cls, request: Request, specs: Iterable[Spec], bar: Progress, *needed: str) -> Profiles:
        """Measured now, or found in the work folder; `needed` are metrics that the study cannot do
        without."""
        metrics = list(dict.fromkeys([*needed, *request.options["metrics"]]))
        return cls(request, {spec.label: profile_of(request, spec, metrics, bar) for spec in specs})

    def table(self, own: Mapping[str, dict[str, Any]]) -> pd.DataFrame:
        """The rows of the profiles and the depths of their valleys; `own` are columns that a model
        has besides."""
        rows = [profile_rows(run, label, **own[label]) for label, run in self.items()]
        depths = [row for valley in self.valleys for row in valley.rows(**own[valley.label])]
        return pd.concat([*rows, pd.DataFrame(depths)], ignore_index=True)

    @property
    def conventions(self) -> dict[str, Any]:
        """What they say about their models and metrics, for the study's manifest."""
        first = next(iter(self.values()))
        models = {label: run.manifest["model"] for label, run in self.items()}
        return {
            "models": models,
            "metrics": first.manifest["conventions"]["metrics"],
            "valley": VALLEY,
        }

    def minus(
        self, base: str, other: str, paired: Iterable[tuple[str, str]] = PAIRED
    ) -> Differences:
        """Other minus base at the base's layers, prompt by prompt."""
        blocks = [int(self[label].manifest["model"]["n_blocks"]) for label in (base, other)]
        want, have = (np.arange(count + 1) / count for count in blocks)
        values = {}
        for (metric, normalization), sink in product(paired, SINKS):
            one, two = (
                _values(self[label], metric, normalization, sink, self.texts)
                for label in (base, other)
            )
            values[metric, normalization, sink] = at_depths(two, have, want) - one
        return Differences(base, other, blocks[0], values, self.seed)

    @property
    def warnings(self) -> list[str]:
        """The profiles' warnings, each with its model."""
        return [
            f"{label}: {line}" for label, run in self.items() for line in run.manifest["warnings"]
        ]


INVARIANCE = {"infonce": -1, "lidar": 1, "dime": 1}  # the sign of more invariance to augmentation


def invariance(base: Profile, other: Profile, names: tuple[str, str]) -> list[str]:
    """What the metrics of augmented views say of two models, by depth; nothing where none was
    measured in both."""
    parts = []
    signs = []
    for metric, sign in INVARIANCE.items():
        one, two = (_view_curve(run, metric) for run in (base, other))
        if one is None or two is None:
            continue
        want = one["depth"].to_numpy()
        value, low, high = (
            np.interp(want, two["depth"], two[name]) for name in ("value", *INTERVAL)
        )
        difference = value - one["value"].to_numpy()
        other_low, other_high = (one[name].to_numpy() for name in INTERVAL)
        apart = (low > other_high) | (high < other_low)
        more = int((apart & (sign * difference > 0)).sum())
        less = int((apart & (sign * difference < 0)).sum())
        signs.append(int(np.sign(more - less)))
        parts.append(
            f"{metrics()[metric].info.title} {difference.mean():+.3g} on average over layers "
            f"(intervals apart towards more at {more} of {len(want)}, towards less at {less})"
        )
    if not parts:
        return []
    word = {1: "more invariant", -1: "less invariant", 0: "not clearly more or less invariant"}
    whole = (
        word[signs[0]] if len(set(signs)) == 1 else "more invariant by some metrics, not by others"
    )
    return [f"Augmentation invariance, {names[1]} against {names[0]}: {whole}. {'; '.join(parts)}."]


def _view_curve(run: Profile, metric: str) -> pd.DataFrame | None:
    rows = run.table[
        (run.table["metric"] == metric) & (run.table["normalization"] == "raw")
    ].sort_values("layer")
    rows = rows.dropna(subset=["value"])
    if len(rows) < 2:
        return None
    return rows.assign(**{name: rows[name].fillna(rows["value"]) for name in INTERVAL})
