"""Confidence intervals over prompts.

Means of per-prompt values, and what is close to one (InfoNCE, anisotropy, TwoNN), are bootstrapped:
a resample draws N prompts with replacement, prompt i gets weight w_i, and the value moves by Σ (w_i
− 1) times its influence, which is exact for means. Spectral quantities give a standard error from
leaving out folds of prompts instead, DiME one over its permutations; their interval follows
Student's t. Why not resample pooled vectors: docs/decisions/intervals.md.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from layerscope.core.statistics import Z95, student_quantile
from layerscope.metrics.base import Estimate

__all__ = ["RESAMPLES"]

RESAMPLES = 1000
LEVEL = 0.95
_MOST_DF = 30
# Above this many prompts the resampled mean is normal to far better than the plot shows; drawing
# weights would cost memory.
_LARGEST_DRAWN = 5000


@lru_cache(maxsize=4)
def _weights(n: int, seed: int) -> np.ndarray:
    """Return multinomial weights minus one, (resamples, n)."""
    rng = np.random.default_rng([seed, n])
    counts = rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    return counts.astype(np.float32) - 1


def interval(estimate: Estimate, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % interval of an estimate; (NaN, NaN) where it has none (fewer than two prompts, or no
    value)."""
    return many_intervals([estimate], seed)[0]


def many_intervals(estimates: Sequence[Estimate], seed: int = 0) -> list[tuple[float, float]]:
    """Return the 95 % intervals of several estimates: resamples of the same prompts are drawn once for all
    of them."""
    out = [(math.nan, math.nan)] * len(estimates)
    by_count: dict[int, list[int]] = defaultdict(list)
    for i, estimate in enumerate(estimates):
        if not math.isfinite(estimate.value):
            continue
        if estimate.se is not None:
            half = _student(estimate.df) * estimate.se
            if math.isfinite(half):
                out[i] = estimate.value - half, estimate.value + half
        elif estimate.influence is not None and len(estimate.influence) >= 2:
            by_count[len(estimate.influence)].append(i)
    for n, group in by_count.items():
        lows, highs = _shifts([estimates[i] for i in group], n, seed)
        for i, low, high in zip(group, lows, highs, strict=True):
            if not math.isnan(low):
                out[i] = estimates[i].value + low, estimates[i].value + high
    return out


def _shifts(estimates: Sequence[Estimate], n: int, seed: int) -> list[list[float]]:
    """Return how far resampling n prompts moves each estimate down and up; NaN where an influence is
    not finite."""
    g = np.stack([estimate.influence for estimate in estimates if estimate.influence is not None])
    usable = np.isfinite(g).all(1)
    # The bootstrap's variance is (n − 1)/n of the sample's: undo that, it shows for a handful of
    # prompts.
    g = g[usable] if not usable.all() else g
    g = (g - g.mean(1, keepdims=True)) * math.sqrt(n / (n - 1))
    ends = np.full((2, len(estimates)), math.nan)
    if n > _LARGEST_DRAWN:
        half = Z95 * np.sqrt(np.square(g).sum(1))
        ends[:, usable] = -half, half
    elif len(g):
        # in float32, as the weights are: these are distances from the value, of which seven digits
        # are plenty in any unit
        widest = np.abs(g).max(1)
        scale = np.where(widest > 0, widest, 1.0)
        steps = torch.from_numpy(np.ascontiguousarray(g.T / scale, dtype=np.float32))
        # by torch, whose workers use one thread each: numpy's own threads would spin for a while
        # after every product
        moved = (torch.from_numpy(_weights(n, seed)) @ steps).numpy()
        ends[:, usable] = scale * np.quantile(moved, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return ends.tolist()


def _student(df: int | None) -> float:
    """Return the 97.5 % quantile of Student's t; the normal one where the degrees of freedom are many or
    not known."""
    if df is None or df > _MOST_DF:
        return Z95
    # four digits, as in runs that are already stored
    return round(student_quantile(0.975, df), 4) if df >= 1 else math.nan
