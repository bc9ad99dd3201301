"""Confidence intervals from the bootstrap over prompts.

A resample draws N prompts with replacement: prompt i gets weight w_i. For a mean of per-prompt values the resampled value is
Σ w_i x_i / N. For spectral quantities the plain bootstrap fails: a prompt drawn twice is one direction, not two, so every
resample has a lower rank than the data and the interval would miss the value itself. Here each metric gives its first-order
expansion in the weights (its influence), and the bootstrap is taken of that: exact for means, without that bias for the rest.
See docs/decisions/intervals.md.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from layerscope.metrics.base import Estimate

RESAMPLES = 1000
LEVEL = 0.95
_Z95 = 1.959963984540054
# Above this many prompts the resampled mean is normal to far better than the plot shows; drawing weights would cost memory.
_LARGEST_DRAWN = 5000


@lru_cache(maxsize=4)
def _weights(n: int, seed: int) -> np.ndarray:
    """Multinomial weights minus one, (resamples, n)."""
    rng = np.random.default_rng([seed, n])
    counts = rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    return counts.astype(np.float32) - 1


def interval(estimate: Estimate, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of an estimate; (NaN, NaN) where it has none (fewer than two prompts, or no value)."""
    if not math.isfinite(estimate.value):
        return math.nan, math.nan
    if estimate.se is not None:
        half = _Z95 * estimate.se
        return (estimate.value - half, estimate.value + half) if math.isfinite(half) else (math.nan, math.nan)
    g = estimate.influence
    if g is None or len(g) < 2 or not np.isfinite(g).all():
        return math.nan, math.nan
    # The bootstrap's variance is (n − 1)/n of the sample's: undo that, it shows for a handful of prompts.
    g = (g - g.mean()) * math.sqrt(len(g) / (len(g) - 1))
    if len(g) > _LARGEST_DRAWN:
        half = _Z95 * float(np.sqrt(np.square(g).sum()))
        return estimate.value - half, estimate.value + half
    shifts = _weights(len(g), seed) @ g
    low, high = np.quantile(shifts, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return estimate.value + float(low), estimate.value + float(high)
