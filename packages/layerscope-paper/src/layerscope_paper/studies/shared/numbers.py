"""Numbers of studies: means over prompts with 95 % intervals as rows of tables, and what they say
in words."""

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
    """The mean of one number per prompt; undefined ones are left out."""
    return means_of([values], seed)[0]


def means_of(values: Iterable[np.ndarray], seed: int) -> list[Interval]:
    """The means of several numbers per prompt."""
    estimates = [mean_over_prompts(np.asarray(one, dtype=float), 1) for one in values]
    return [
        Interval(e.value, *ends, e.n)
        for e, ends in zip(estimates, many_intervals(estimates, seed), strict=True)
    ]


def defined_mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """The mean of what is defined; NaN, without a warning, where nothing is."""
    count = np.isfinite(values).sum(axis=axis)
    return np.where(count > 0, np.nansum(values, axis=axis) / np.maximum(count, 1), np.nan)


def place_of(site: Site) -> dict[str, Any]:
    """Where a state was read, as columns of a table."""
    return {"site": site.name, "layer": site.layer, "depth": site.depth}


def whole_layer(layer: int, blocks: int) -> dict[str, Any]:
    """The same for a whole layer."""
    return {"site": site_of(layer), "layer": layer, "depth": layer / blocks}


def mean_table(
    measured: Iterable[tuple[Mapping[str, Any], np.ndarray]], seed: int, columns: list[str]
) -> pd.DataFrame:
    """A tidy table: a row per setting, with the mean over prompts of its values and the
    interval."""
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
    """A row per setting (its values are called `names`) and place, from values (prompts, places) by
    setting."""
    settings = [
        ({**common, **dict(zip(names, key, strict=True))}, array) for key, array in values.items()
    ]
    each = [
        ({**setting, **place}, array[:, j])
        for setting, array in settings
        for j, place in enumerate(places)
    ]
    return mean_table(each, seed, columns)


def middle_half(layers: int) -> np.ndarray:
    """Which of so many layers lie at a depth of 0.25 to 0.75."""
    depth = np.arange(layers) / (layers - 1)
    return (depth >= 0.25) & (depth <= 0.75)


MOVES = {1: "rises", -1: "falls", 0: "does not clearly move"}
DIFFERS = {1: "higher", -1: "lower", 0: "not clearly different"}
THAN = {1: " than that of", -1: " than that of", 0: " from that of"}  # what follows `DIFFERS`


def name_layers(numbers: Iterable[int]) -> str:
    """Layers as ranges.

    >>> name_layers([2]), name_layers([1, 2, 4])
    ('layer 2', 'layers 1–2, 4')
    """
    given = sorted(set(numbers))
    return f"layer{'s' * (len(given) != 1)} {', '.join(layer_ranges(given))}"


def join_words(words: Iterable[str]) -> str:
    """Words as a list in a sentence.

    >>> join_words(["a", "b", "c"])
    'a, b and c'
    """
    given = list(words)
    return (
        given[0] if len(given) == 1 else f"{', '.join(given[:-1])} and {given[-1]}" if given else ""
    )


def where_clear(each: Sequence[Interval], up: str, down: str) -> str:
    """Words that say at which layers a change is clear, and at which it is largest.

    >>> where_clear([Interval(0.1, -1, 1), Interval(2, 1, 3), Interval(-1, -2, -0.5)], "higher", "lower")
    'clearly higher at layer 1 and lower at layer 2 of 2; most at layer 1, +2.00 (+1.00 to +3.00).'
    """
    signs = {
        sign: [layer for layer, mean in enumerate(each) if mean.sign == sign] for sign in (1, -1)
    }
    where = " and ".join(
        f"{word} at {name_layers(signs[sign])}"
        for sign, word in ((1, up), (-1, down))
        if signs[sign]
    )
    if not where:
        return "at no single layer is the change clear."
    sizes = [abs(mean.value) if mean.value == mean.value else -1.0 for mean in each]
    most = sizes.index(max(sizes))
    return f"clearly {where} of {len(each) - 1}; most at layer {most}, {each[most]}."


def change_without_sink(kept: Interval, dropped: Interval, words: Mapping[int, str]) -> str:
    """What a number does without the sink token, where that is not what it does with it; `words`
    are by sign.

    >>> change_without_sink(Interval(1, 0.5, 2), Interval(-1, -2, -0.5), MOVES)
    ' (falls without the sink token)'
    """
    return "" if kept.sign == dropped.sign else f" ({words[dropped.sign]} without the sink token)"


def sentence(text: str) -> str:
    """A text that starts with a capital letter."""
    return text[0].upper() + text[1:]


def in_short(answer: str) -> str:
    """The first sentence of a verdict."""
    return f"In short: {answer}."


def student_interval(values: ArrayLike, fewest: int = 2) -> Interval:
    """The mean of a few numbers (one per seed, one per task) with Student's 95 % interval; none for
    fewer than `fewest`.

    >>> print(student_interval([1.0, 2.0, 3.0]))
    +2.00 (-0.48 to +4.48)
    """
    given = np.asarray(values, dtype=float)
    n = len(given)
    mean = float(given.mean())
    if n < max(fewest, 2):
        return Interval(mean, n=n)
    half = student_quantile(0.975, n - 1) * float(given.std(ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def percentile_interval(value: float, drawn: Array, n: int = 0) -> Interval:
    """A value with the middle 95 % of what was drawn; undefined draws are left out."""
    known = drawn[np.isfinite(drawn)]
    if not len(known):
        return Interval(value, n=n)
    low, high = np.quantile(known, [0.025, 0.975])
    return Interval(value, float(low), float(high), n)
