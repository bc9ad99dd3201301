"""Profiles of several models on the same texts: values prompt by prompt, valleys, differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.statistics import INTERVAL, Interval, find_valley
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
    """Return per-prompt values of a profile: a row per prompt number, a column per site in the
    pass's order.

    With `texts`, there is a row for each of that many texts, empty where one had no token: rows of
    several models then match.
    """
    column = f"{metric}_sink_dropped" if sink == "drop" else metric
    sites = list(dict.fromkeys(run.prompts["site"]))
    table = run.prompts.pivot(index="prompt", columns="site", values=column).reindex(columns=sites)
    return (table if texts is None else table.reindex(range(texts))).to_numpy()


def token_counts(run: Profile) -> pd.Series:
    """Return the number of tokens by prompt. Models that read the same tokens have the same
    counts."""
    return run.prompts.drop_duplicates("prompt").set_index("prompt")["tokens"].sort_index()


def at_depths(values: np.ndarray, depths: np.ndarray, new_depths: np.ndarray) -> np.ndarray:
    """Return values (prompts, layers) of a model at other depths: the straight line between the two
    nearest layers.

    >>> at_depths(np.array([[0.0, 2.0]]), np.array([0.0, 1.0]), np.array([0.0, 0.5, 1.0]))
    array([[0., 1., 2.]])
    """
    right = np.clip(np.searchsorted(depths, new_depths), 1, len(depths) - 1)
    share = (new_depths - depths[right - 1]) / (depths[right] - depths[right - 1])
    # the value of a layer at the same depth is exact, so that NaN of its neighbor does not reach it
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
    """Return the dip of the mean over prompts (rows) along layers (columns).

    Its place and shoulders are those of the mean curve; the interval is over prompts, with the
    places fixed. A curve without a dip has depth 0.
    """
    whole = np.isfinite(values).all(axis=1)
    falls = np.full(len(values), np.nan)
    if not whole.any() or values.shape[1] < 3:
        return Dip(0, math.nan, Interval(math.nan, n=int(whole.sum())), falls)
    valley = find_valley(values[whole].mean(axis=0), samples=values[whole])
    assert valley is not None, "the curve has three points or more, all known"
    falls[whole] = values[whole, valley.shoulder_place] - values[whole, valley.place]
    depth = mean_of(falls, seed)
    is_valley = valley.clear and depth.low > 0  # one prompt has no interval, so no verdict
    return Dip(valley.place, valley.shoulder, depth, falls, is_valley)


@dataclass(frozen=True)
class Valleys:
    """The dips of one model's prompt entropy by sink setting (`keep`, `drop`)."""

    label: str
    layers: int
    by_sink: dict[str, Dip]

    @classmethod
    def of(cls, run: Profile, label: str, seed: int, texts: int) -> Valleys:
        """Find the dips in a profile of whole layers on so many texts."""
        dips = {sink: dip_of(by_layer(run, "prompt_entropy", sink, texts), seed) for sink in SINKS}
        return cls(label, int(run.manifest["model"]["n_blocks"]), dips)

    def sentence(self) -> str:
        """Describe the dips, no more certainly than their intervals."""
        dip = self.by_sink["keep"]
        dip_without = self.by_sink["drop"]
        depth = dip.depth.format(signed=False)
        depth_without = dip_without.depth.format(signed=False)
        if not dip.is_valley:
            return (
                f"{self.label} has no clear valley: its deepest dip is {depth} nats, without the "
                f"sink token {depth_without}."
            )
        text = f"{self.label} has a valley at layer {dip.place} of {self.layers}, {depth} nats deep"
        if dip_without.is_valley:
            return (
                f"{text}; without the sink token one remains at layer {dip_without.place}, "
                f"{depth_without}."
            )
        return f"{text}; without the sink token none is left ({depth_without})."

    def rows(self, **columns: object) -> list[dict[str, object]]:
        """Return rows of a table: the depth of each dip, at its layer."""
        return [
            {
                **columns,
                "model": self.label,
                **whole_layer(dip.place, self.layers),
                "metric": "valley_depth",
                "normalization": "raw",
                "sink": sink,
                **dip.depth.columns,
            }
            for sink, dip in self.by_sink.items()
        ]


def deeper(before: Valleys, after: Valleys, seed: int) -> list[Interval]:
    """Return the difference of two dips' depths, prompt by prompt: with the sink token, and without
    it."""
    differences = [after.by_sink[sink].falls - before.by_sink[sink].falls for sink in SINKS]
    return means_of(differences, seed)


def profile_rows(run: Profile, label: str, **columns: object) -> pd.DataFrame:
    """Return a profile's table with the model's name: raw values, and prompt entropy divided by the
    log of the length as well."""
    table = run.table
    by_length = (table["metric"] == "prompt_entropy") & (table["normalization"] == "logN")
    rows = table[(table["normalization"] == "raw") | by_length]
    return rows.assign(model=label, **columns)[[*columns, *VALUES]]  # type: ignore[arg-type]


# metric and normalization of the values per prompt
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
        """Return the mean over prompts of each prompt's mean over layers, with the sink token and
        without it."""
        return means_of(
            (self.values[metric, normalization, sink].mean(axis=1) for sink in SINKS), self.seed
        )

    def table(self, **columns: object) -> pd.DataFrame:
        """Return a row per layer of the base."""
        places = [whole_layer(layer, self.blocks) for layer in range(self.blocks + 1)]
        names = ("metric", "normalization", "sink")
        common = {**columns, "model": self.other}
        all_columns = [*columns, *VALUES]
        return layer_table(self.values, names, places, self.seed, all_columns, **common)


def _values(run: Profile, metric: str, normalization: str, sink: str, texts: int) -> np.ndarray:
    """Return values (texts, layers); `logN` divides by the log of each prompt's number of tokens,
    where that is above 0."""
    values = by_layer(run, metric, sink, texts)
    if normalization == "raw":
        return values
    tokens = token_counts(run).reindex(range(texts)).to_numpy(dtype=float) - (sink == "drop")
    logs = np.where(tokens > 1, np.log(np.where(tokens > 1, tokens, 2.0)), np.nan)
    return values / logs[:, None]


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
        """Measure the profiles, or read them from the work folder; the metrics `needed` are
        measured besides those of the options."""
        metrics = list(dict.fromkeys([*needed, *request.options["metrics"]]))
        return cls(request, {spec.label: profile_of(request, spec, metrics, bar) for spec in specs})

    def table(self, columns: Mapping[str, dict[str, Any]]) -> pd.DataFrame:
        """Return the rows of the profiles and the depths of their valleys, with further columns by
        model."""
        rows = [profile_rows(run, label, **columns[label]) for label, run in self.items()]
        depths = [row for valley in self.valleys for row in valley.rows(**columns[valley.label])]
        return pd.concat([*rows, pd.DataFrame(depths)], ignore_index=True)

    @property
    def conventions(self) -> dict[str, Any]:
        """Their models and metrics, for the study's manifest."""
        run = next(iter(self.values()))
        return {
            "models": {label: run.manifest["model"] for label, run in self.items()},
            "metrics": run.manifest["conventions"]["metrics"],
            "valley": VALLEY,
        }

    def minus(
        self, base: str, other: str, paired: Iterable[tuple[str, str]] = PAIRED
    ) -> Differences:
        """Return other minus base at the base's layers, prompt by prompt."""
        blocks = [int(self[label].manifest["model"]["n_blocks"]) for label in (base, other)]
        base_depths, other_depths = (np.arange(count + 1) / count for count in blocks)
        differences = {}
        for (metric, normalization), sink in product(paired, SINKS):
            base_values, other_values = (
                _values(self[label], metric, normalization, sink, self.texts)
                for label in (base, other)
            )
            aligned = at_depths(other_values, other_depths, base_depths)
            differences[metric, normalization, sink] = aligned - base_values
        return Differences(base, other, blocks[0], differences, self.seed)

    @property
    def warnings(self) -> list[str]:
        """The profiles' warnings, each with its model."""
        return [
            f"{label}: {line}" for label, run in self.items() for line in run.manifest["warnings"]
        ]


INVARIANCE = {"infonce": -1, "lidar": 1, "dime": 1}  # the sign of more invariance to augmentation


def invariance(base: Profile, other: Profile, names: tuple[str, str]) -> list[str]:
    """Compare two models by the metrics of augmented views; no sentence where none was measured in
    both."""
    phrases = []
    signs = set()
    for metric, sign in INVARIANCE.items():
        base_curve, other_curve = (_view_curve(run, metric) for run in (base, other))
        if base_curve is None or other_curve is None:
            continue
        depths = base_curve["depth"].to_numpy()
        value, low, high = (
            np.interp(depths, other_curve["depth"], other_curve[name])
            for name in ("value", *INTERVAL)
        )
        difference = value - base_curve["value"].to_numpy()
        base_low, base_high = (base_curve[name].to_numpy() for name in INTERVAL)
        apart = (low > base_high) | (high < base_low)
        higher = int((apart & (sign * difference > 0)).sum())
        lower = int((apart & (sign * difference < 0)).sum())
        signs.add(int(np.sign(higher - lower)))
        phrases.append(
            f"{metrics()[metric].info.title} {difference.mean():+.3g} on average over layers "
            f"(intervals apart towards more at {higher} of {len(depths)}, towards less at {lower})"
        )
    if not phrases:
        return []
    words = {1: "more invariant", -1: "less invariant", 0: "not clearly more or less invariant"}
    answer = "more invariant by some metrics, not by others"
    if len(signs) == 1:
        answer = words[signs.pop()]
    return [
        f"Augmentation invariance, {names[1]} against {names[0]}: {answer}. {'; '.join(phrases)}."
    ]


def _view_curve(run: Profile, metric: str) -> pd.DataFrame | None:
    """Return a metric's curve with an interval everywhere; None for fewer than two layers."""
    rows = run.table[
        (run.table["metric"] == metric) & (run.table["normalization"] == "raw")
    ].sort_values("layer")
    rows = rows.dropna(subset=["value"])
    if len(rows) < 2:
        return None
    return rows.assign(**{name: rows[name].fillna(rows["value"]) for name in INTERVAL})
