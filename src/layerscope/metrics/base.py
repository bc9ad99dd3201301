"""The types of metrics: facts and one function each.

A metric over tokens has `measure`, which gives one number per prompt. A metric over vectors has
`estimate`, which gives the value of all prompts. A module-level `Metric` in this folder, or an
entry point in the group `layerscope.metrics`, makes it known. Tables, figures, studies and the
report then show it by what `info` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from torch import Tensor

from layerscope.metrics.entropy import Normalization, normalizer, normalizers
from layerscope.metrics.vectors import Options, SiteVectors

__all__ = ["mean_over_prompts"]

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
