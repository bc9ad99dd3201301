"""Confidence intervals over prompts.

Means of per-prompt values, and what is close to one (InfoNCE, anisotropy, TwoNN), are bootstrapped: a resample draws N prompts
with replacement, prompt i gets weight w_i, and the value moves by Σ (w_i − 1) times its influence, which is exact for means.
Spectral quantities give a standard error from leaving out folds of prompts instead, DiME one over its permutations; their
interval follows Student's t. Why not resample pooled vectors: docs/decisions/intervals.md.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from layerscope.metrics.base import Estimate

RESAMPLES = 1000
LEVEL = 0.95
_Z95 = 1.959963984540054
# 97.5 % quantile of Student's t for 1 to 30 degrees of freedom
_T95 = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)
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
    return many_intervals([estimate], seed)[0]


def many_intervals(estimates: Sequence[Estimate], seed: int = 0) -> list[tuple[float, float]]:
    """The 95 % intervals of several estimates: resamples of the same prompts are drawn once for all of them."""
    out = [(math.nan, math.nan)] * len(estimates)
    drawn: dict[int, list[tuple[int, np.ndarray]]] = defaultdict(list)
    for i, estimate in enumerate(estimates):
        g = estimate.influence
        if not math.isfinite(estimate.value):
            continue
        if estimate.se is not None:
            half = _student(estimate.df) * estimate.se
            if math.isfinite(half):
                out[i] = estimate.value - half, estimate.value + half
        elif g is not None and len(g) >= 2 and np.isfinite(g).all():
            # The bootstrap's variance is (n − 1)/n of the sample's: undo that, it shows for a handful of prompts.
            g = (g - g.mean()) * math.sqrt(len(g) / (len(g) - 1))
            if len(g) > _LARGEST_DRAWN:
                half = _Z95 * float(np.sqrt(np.square(g).sum()))
                out[i] = estimate.value - half, estimate.value + half
            else:
                drawn[len(g)].append((i, g))
    for n, group in drawn.items():
        shifts = _weights(n, seed) @ np.stack([g for _, g in group], axis=1)
        ends = np.quantile(shifts, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        for (i, _), low, high in zip(group, *ends, strict=True):
            out[i] = estimates[i].value + float(low), estimates[i].value + float(high)
    return out


def _student(df: int | None) -> float:
    """The 97.5 % quantile of Student's t; the normal one where the degrees of freedom are many or not known."""
    if df is None or df > len(_T95):
        return _Z95
    return _T95[df - 1] if df >= 1 else math.nan
