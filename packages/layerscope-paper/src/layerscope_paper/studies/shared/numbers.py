"""Means over prompts with 95 % intervals, as rows of tables and in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from layerscope.core.columns import PROFILE, names
from layerscope.core.sites import Site, layer_ranges, site_of
from layerscope.core.statistics import Array, Interval, student_quantile
from layerscope.metrics import many_intervals
from layerscope.metrics.base import mean_over_prompts

SINKS = ("keep", "drop")
VALUES = ["model", *names(PROFILE)]


def mean_of(values: np.ndarray, seed: int) -> Interval:
    """Return the mean of one number per prompt; undefined numbers are left out."""
    return means_of([values], seed)[0]


def means_of(values: Iterable[np.ndarray], seed: int) -> list[Interval]:
    """Return the means of several numbers per prompt."""
    estimates = [mean_over_prompts(np.asarray(numbers, dtype=float), 1) for numbers in values]
    return [
        Interval(e.value, *ends, e.n)
        for e, ends in zip(estimates, many_intervals(estimates, seed), strict=True)
    ]


def defined_mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the mean of the defined values; NaN, without a warning, where none is."""
    count = np.isfinite(values).sum(axis=axis)
    return np.where(count > 0, np.nansum(values, axis=axis) / np.maximum(count, 1), np.nan)


def place_of(site: Site) -> dict[str, Any]:
    """Return a site as columns of a table."""
    return {"site": site.name, "layer": site.layer, "depth": site.depth}


def whole_layer(layer: int, blocks: int) -> dict[str, Any]:
    """Return the output of a layer as columns of a table."""
    return {"site": site_of(layer), "layer": layer, "depth": layer / blocks}


def mean_table(
    measured: Iterable[tuple[Mapping[str, Any], np.ndarray]], seed: int, columns: list[str]
) -> pd.DataFrame:
    """Return a row per setting, with the mean over prompts of its values and the interval."""
    settings, values = zip(*measured, strict=True)
    rows = [
        {**setting, **mean.columns}
        for setting, mean in zip(settings, means_of(values, seed), strict=True)
    ]
    return pd.DataFrame(rows).reindex(columns=columns)


def layer_table(
    values: Mapping[tuple[Any, ...], np.ndarray],
    names: Sequence[str],
    places: Sequence[Mapping[str, Any]],
    seed: int,
    columns: list[str],
    **common: Any,
) -> pd.DataFrame:
    """Return a row per setting (a key of `values`, whose parts have these `names`) and place, from
    values (prompts, places)."""
    measured = []
    for key, array in values.items():
        setting = {**common, **dict(zip(names, key, strict=True))}
        measured += [({**setting, **place}, array[:, j]) for j, place in enumerate(places)]
    return mean_table(measured, seed, columns)


def middle_half(layers: int) -> np.ndarray:
    """Return a mask of so many layers: those at a depth of 0.25 to 0.75."""
    depth = np.arange(layers) / (layers - 1)
    return (depth >= 0.25) & (depth <= 0.75)


MOVES = {1: "rises", -1: "falls", 0: "does not clearly move"}
DIFFERS = {1: "higher", -1: "lower", 0: "not clearly different"}
THAN = {1: " than that of", -1: " than that of", 0: " from that of"}  # follows `DIFFERS`


def name_layers(numbers: Iterable[int]) -> str:
    """Return layers as ranges.

    >>> name_layers([2]), name_layers([1, 2, 4])
    ('layer 2', 'layers 1–2, 4')
    """
    layers = sorted(set(numbers))
    return f"layer{'s' * (len(layers) != 1)} {', '.join(layer_ranges(layers))}"


def join_words(words: Iterable[str]) -> str:
    """Return words as a list in a sentence.

    >>> join_words(["a", "b", "c"])
    'a, b and c'
    """
    *before, last = list(words) or [""]
    return f"{', '.join(before)} and {last}" if before else last


def where_clear(means: Sequence[Interval], up: str, down: str) -> str:
    """Name the layers at which a change is clear, and the one at which it is largest.

    >>> changes = [Interval(0.1, -1, 1), Interval(2, 1, 3), Interval(-1, -2, -0.5)]
    >>> where_clear(changes, "higher", "lower")
    'clearly higher at layer 1 and lower at layer 2 of 2; most at layer 1, +2.00 (+1.00 to +3.00).'
    """
    phrases = []
    for sign, word in ((1, up), (-1, down)):
        layers = [layer for layer, mean in enumerate(means) if mean.sign == sign]
        if layers:
            phrases.append(f"{word} at {name_layers(layers)}")
    if not phrases:
        return "at no single layer is the change clear."
    largest = int(np.nanargmax([abs(mean.value) for mean in means]))
    return (
        f"clearly {' and '.join(phrases)} of {len(means) - 1}; most at layer {largest}, "
        f"{means[largest]}."
    )


def change_without_sink(
    with_sink: Interval, without_sink: Interval, words: Mapping[int, str]
) -> str:
    """Return a remark on a change without the sink token, where its sign differs from that with it;
    `words` are by sign.

    >>> change_without_sink(Interval(1, 0.5, 2), Interval(-1, -2, -0.5), MOVES)
    ' (falls without the sink token)'
    """
    return (
        ""
        if with_sink.sign == without_sink.sign
        else f" ({words[without_sink.sign]} without the sink token)"
    )


def sentence(text: str) -> str:
    """Return a text that starts with a capital letter."""
    return text[0].upper() + text[1:]


def in_short(answer: str) -> str:
    """Return the first sentence of a verdict."""
    return f"In short: {answer}."


def student_interval(values: ArrayLike, fewest: int = 2) -> Interval:
    """Return the mean of a few numbers (one per seed, one per task) with Student's 95 % interval;
    without an interval for fewer than `fewest`.

    >>> print(student_interval([1.0, 2.0, 3.0]))
    +2.00 (-0.48 to +4.48)
    """
    numbers = np.asarray(values, dtype=float)
    n = len(numbers)
    mean = float(numbers.mean())
    if n < max(fewest, 2):
        return Interval(mean, n=n)
    half = student_quantile(0.975, n - 1) * float(numbers.std(ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def percentile_interval(value: float, drawn: Array, n: int = 0) -> Interval:
    """Return a value with the middle 95 % of its draws; undefined draws are left out."""
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        return Interval(value, n=n)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(value, float(low), float(high), n)
