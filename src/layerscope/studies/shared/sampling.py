"""Numbers over prompts: means, paired differences and the depth of a dip, each with its 95 % interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from layerscope.metrics.intervals import interval
from layerscope.metrics.prompt_entropy import mean_over_prompts

# A dip counts as a valley when even the low end of its interval is more than this share of the shoulders.
VALLEY_SHARE = 0.10


@dataclass(frozen=True)
class Mean:
    """A mean over prompts with its 95 % interval (NaN where it has none) and the number of prompts."""

    value: float
    low: float
    high: float
    n: int

    @property
    def apart(self) -> int:
        """1 or −1 where the interval lies above or below zero, 0 where it holds zero or is not known."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    def __str__(self) -> str:
        if not math.isfinite(self.low):
            return f"{self.value:+.2f} (no interval: {self.n} prompt{'s' * (self.n != 1)})"
        return f"{self.value:+.2f} ({self.low:+.2f} to {self.high:+.2f})"


def mean_of(values: np.ndarray, seed: int) -> Mean:
    """The mean of one number per prompt; undefined ones are left out."""
    estimate = mean_over_prompts(np.asarray(values, dtype=float), 1)
    return Mean(estimate.value, *interval(estimate, seed), estimate.n)


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
    # where a depth is that of a layer, its value stands as it is: NaN of a neighbour must not reach it
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
    depth: Mean
    falls: np.ndarray

    @property
    def is_valley(self) -> bool:
        """Whether it is one beyond doubt: deeper than a tenth of the shoulders at the low end of its interval."""
        return self.depth.low > VALLEY_SHARE * self.shoulder


def dip_of(values: np.ndarray, seed: int) -> Dip:
    """The dip of the mean over prompts (rows) along layers (columns).

    Its place and shoulders are those of the mean curve; the interval is over prompts, with the places held. A curve without a
    dip has depth 0.
    """
    whole = np.isfinite(values).all(axis=1)
    falls = np.full(len(values), np.nan)
    if not whole.any() or values.shape[1] < 3:
        return Dip(0, math.nan, math.nan, Mean(math.nan, math.nan, math.nan, int(whole.sum())), falls)
    mean = values[whole].mean(axis=0)
    left = np.maximum.accumulate(mean)
    right = np.maximum.accumulate(mean[::-1])[::-1]
    place = int(np.argmax((np.minimum(left, right) - mean)[1:-1])) + 1
    before, after = int(np.argmax(mean[: place + 1])), place + int(np.argmax(mean[place:]))
    lower = before if mean[before] <= mean[after] else after
    falls[whole] = values[whole, lower] - values[whole, place]
    return Dip(place, float(mean[place]), float(mean[lower]), mean_of(falls, seed), falls)
