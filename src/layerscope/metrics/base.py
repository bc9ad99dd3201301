"""The types of metrics, facts and one function each; and confidence intervals over prompts.

A metric over tokens has `measure`, which gives one number per prompt. A metric over vectors has
`estimate`, which gives the value of all prompts. A module-level `Metric` in this folder, or an
entry point in the group `layerscope.metrics`, makes it known. Tables, figures, studies and the
report then show it by what `info` says.

Means of per-prompt values, and what is close to one (InfoNCE, anisotropy, TwoNN), are bootstrapped:
a resample draws N prompts with replacement, prompt i gets weight w_i, and the value moves by Σ (w_i
− 1) times its influence, which is exact for means. Spectral quantities give a standard error from
leaving out folds of prompts instead, DiME one over its permutations; their interval follows
Student's t. Why not resample pooled vectors: docs/decisions/intervals.md.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from layerscope.core.statistics import Z95, student_quantile
from layerscope.metrics.entropy import Normalization, normalizer, normalizers
from layerscope.metrics.vectors import Options, SiteVectors

__all__ = ["RESAMPLES", "mean_over_prompts"]

Level = Literal["tokens", "pooled", "views"]
Sink = Literal["keep", "drop"]
Estimator = Callable[[SiteVectors, Options], "Estimate"]
Measure = Callable[[Tensor, Tensor, Options], Tensor]


@dataclass(frozen=True)
class MetricInfo:
    """Facts about a metric that tables, plots, checks and layer selection read.

    `level` is what it is computed from: the token states of each prompt, the pooled vectors of all
    prompts, or the pooled vectors of several augmented views. `higher_means` says in words what a
    larger value says about the states, `bounds` between which values it lies.

    How it is shown: `heading` is the column heading of tables (two lines at most; the title if
    empty), `order` its place among the metrics (small ones first), `log_scale` the axis of figures.
    `main` metrics are shown where not all of them fit. `compare_sinks` shows the value without the
    sink token beside the one with it. A metric that is not `by_default` is measured where it is
    named (`--metrics all,state_norm`).
    """

    name: str
    title: str
    level: Level
    unit: str
    higher_means: str
    bounds: str
    citation: str
    normalizations: tuple[Normalization, ...] = ("raw",)
    sinks: tuple[Sink, ...] = ("keep",)
    core: bool = False  # one of the seven of the paper
    heading: str = ""
    order: int = 1000
    log_scale: bool = False
    main: bool = True
    compare_sinks: bool = False
    by_default: bool = True

    def __post_init__(self) -> None:
        if not self.heading:
            object.__setattr__(self, "heading", self.title.replace(" ", "\n", 1))


@dataclass(frozen=True)
class Estimate:
    """A value with what its uncertainty is computed from.

    `influence[i]` is the change of the value per unit of extra weight on prompt i (its first-order
    expansion), in the order of the prompts' keys; a bootstrap over prompts needs no more. `se` with
    its degrees of freedom `df` is given instead where the spread comes from folds of prompts left
    out (spectra) or from permutations (DiME). `undefined` counts prompts without a value: they are
    left out, never averaged in.
    """

    value: float
    n: int
    d: int
    influence: np.ndarray | None = None
    se: float | None = None
    undefined: int = 0
    df: int | None = None

    def scaled(self, by: float) -> Estimate:
        """Return the estimate of `by` times this quantity."""
        influence = None if self.influence is None else self.influence * by
        se = None if self.se is None else self.se * abs(by)
        return replace(self, value=self.value * by, influence=influence, se=se)

    def mapped(self, function: Callable[[float], float], slope: float) -> Estimate:
        """Return the estimate of a smooth function of this quantity, with its slope at the
        value."""
        return replace(self.scaled(slope), value=function(self.value))


@dataclass(frozen=True)
class Metric:
    """A metric: its facts, and the function of its level.

    `estimate(site, options)` gives the raw value of a metric of vectors. `measure(states, mask,
    options)` gives one number per prompt (B,) of token states (B, T, D). There `mask` (B, T) is
    False at padding, and NaN means undefined. With `before_final_norm`, `measure` gets the states
    without the final norm, whatever the setting of the run.
    """

    info: MetricInfo
    estimate: Estimator | None = None
    measure: Measure | None = None
    before_final_norm: bool = False


def estimate_vectors(metric: Metric, site: SiteVectors, options: Options) -> Estimate:
    """Return the raw value of a metric of pooled vectors or views.

    >>> import torch
    >>> from layerscope.metrics import get_metric
    >>> site = SiteVectors(torch.ones(3, 2))  # all in the same direction
    >>> round(estimate_vectors(get_metric("anisotropy"), site, Options()).value, 6)
    1.0
    """
    if metric.estimate is None:
        raise ValueError(f"{metric.info.name} is a metric of tokens: it has no estimate of vectors")
    return metric.estimate(site, options)


def estimate_prompts(
    metric: Metric,
    values: np.ndarray,
    tokens: np.ndarray,
    width: int,
    normalization: Normalization = "raw",
) -> Estimate:
    """Return the mean of a metric over prompts from its value of each.

    A normalization divides each prompt's value by what follows from its own number of tokens.
    """
    if normalization != "raw":
        values = values / normalizers(normalization, tokens, width)
    return mean_over_prompts(values, width)


def mean_over_prompts(values: np.ndarray, width: int) -> Estimate:
    """Return the mean of per-prompt values; undefined ones (NaN) are left out and counted."""
    defined = np.isfinite(values)
    n = int(defined.sum())
    if n == 0:
        return Estimate(math.nan, 0, width, undefined=len(values))
    present = values[defined]
    mean = float(present.mean())
    return Estimate(mean, n, width, (present - mean) / n, undefined=len(values) - n)


def normalized(raw: Estimate, normalization: Normalization) -> Estimate:
    """Return a value of all prompts under a normalization, by their number and width."""
    by = normalizer(normalization, raw.n, raw.d)
    return raw.scaled(1 / by)


# Intervals

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
    """Return the 95 % interval of an estimate; (NaN, NaN) where it has none (fewer than two
    prompts, or no value)."""
    return many_intervals([estimate], seed)[0]


def many_intervals(estimates: Sequence[Estimate], seed: int = 0) -> list[tuple[float, float]]:
    """Return the 95 % intervals of several estimates: resamples of the same prompts are drawn once
    for all of them."""
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
    """Return how far resampling n prompts moves each estimate down and up; NaN where an influence
    is not finite."""
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
    """Return the 97.5 % quantile of Student's t; the normal one where the degrees of freedom are
    many or not known."""
    if df is None or df > _MOST_DF:
        return Z95
    # four digits, as in runs that are already stored
    return round(student_quantile(0.975, df), 4) if df >= 1 else math.nan
