"""Per-prompt values over layers: means with 95 % intervals, as rows of tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.columns import PROFILE, names
from layerscope.core.sites import Site, site_of
from layerscope.core.statistics import Interval
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
    return [Interval(e.value, *ends, e.n) for e, ends in zip(estimates, many_intervals(estimates, seed), strict=True)]


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


def mean_table(measured: Iterable[tuple[Mapping[str, Any], np.ndarray]], seed: int, columns: list[str]) -> pd.DataFrame:
    """A tidy table: a row per setting, with the mean over prompts of its values and the interval."""
    settings, values = zip(*measured, strict=True)
    rows = [{**setting, **mean.columns} for setting, mean in zip(settings, means_of(values, seed), strict=True)]
    return pd.DataFrame(rows).reindex(columns=columns)


def layer_table(
    values: Mapping[tuple[Any, ...], np.ndarray],
    names: Sequence[str],
    places: Sequence[Mapping[str, Any]],
    seed: int,
    columns: list[str],
    **common: Any,
) -> pd.DataFrame:
    """A row per setting (its values are called `names`) and place, from values (prompts, places) by setting."""
    settings = [({**common, **dict(zip(names, key, strict=True))}, array) for key, array in values.items()]
    each = [({**setting, **place}, array[:, j]) for setting, array in settings for j, place in enumerate(places)]
    return mean_table(each, seed, columns)


def middle_half(layers: int) -> np.ndarray:
    """Which of so many layers lie at a depth of 0.25 to 0.75."""
    depth = np.arange(layers) / (layers - 1)
    return (depth >= 0.25) & (depth <= 0.75)
