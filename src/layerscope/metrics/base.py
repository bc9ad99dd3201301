"""What a metric is: its facts, its estimate, and the accumulator that every metric shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np

from layerscope.metrics.entropy import Normalization, normalizer
from layerscope.metrics.options import Options

Data = TypeVar("Data")
Level = Literal["tokens", "pooled", "views"]
Bounds = Callable[[int, int, Options], tuple[float, float]]


@dataclass(frozen=True)
class MetricInfo:
    """Facts about a metric that tables, plots, checks and layer selection read.

    `level` is what it is computed from: the token states of each prompt, the pooled vectors of all prompts, or the
    pooled vectors of several augmented views. `higher_means` says in words what a larger value says about the states.
    `bounds(n, d, options)` limits the raw value for n samples in d dimensions.
    """

    name: str
    title: str
    level: Level
    unit: str
    higher_means: str
    bounds: Bounds
    bounds_text: str
    citation: str
    normalizations: tuple[Normalization, ...] = ("raw",)
    sinks: tuple[Literal["keep", "drop"], ...] = ("keep",)
    core: bool = False  # one of the seven of the paper


@dataclass
class Estimate:
    """A value with what its uncertainty is computed from.

    `influence[i]` is the change of the value per unit of extra weight on prompt i (its first-order expansion), in the
    data's canonical order; a bootstrap over prompts needs no more. `se` with its degrees of freedom `df` is given instead where
    the spread comes from folds of prompts left out (spectra) or from permutations (DiME). `undefined` counts prompts without a
    value: they are left out, never averaged in.
    """

    value: float
    n: int
    d: int
    influence: np.ndarray | None = None
    se: float | None = None
    undefined: int = 0
    df: int | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    def scaled(self, by: float) -> Estimate:
        """The estimate of `by` times this quantity."""
        return Estimate(
            self.value * by,
            self.n,
            self.d,
            None if self.influence is None else self.influence * by,
            None if self.se is None else self.se * abs(by),
            self.undefined,
            self.df,
            self.notes,
        )

    def mapped(self, function: Callable[[float], float], slope: float) -> Estimate:
        """The estimate of a smooth function of this quantity, with its slope at the value."""
        out = self.scaled(slope)
        out.value = function(self.value)
        return out


class Metric(Generic[Data]):
    """An accumulator: `update` with samples, `merge` with another one, `compute` at the end.

    Batches, their order and the split into merged accumulators do not change the result. Several metrics that read the
    same samples may share one `data` (see `estimate`), which is how a profile computes them.
    """

    info: ClassVar[MetricInfo]
    data: Data

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.data = self.new_data()

    def new_data(self) -> Data:
        """An empty container for this metric's samples."""
        raise NotImplementedError(f"{type(self).__name__} must say what data it accumulates")

    def update(self, *args: Any, **kwargs: Any) -> Self:
        """Add samples; the arguments are those of this metric's data."""
        self.data.update(*args, **kwargs)  # type: ignore[attr-defined]
        return self

    def merge(self, other: Self) -> Self:
        """Add what another accumulator of the same metric has seen."""
        self.data.merge(other.data)  # type: ignore[attr-defined]
        return self

    def estimate(self, data: Data) -> Estimate:
        """The raw value of this metric on some data, with its influences. Pure."""
        raise NotImplementedError(f"{type(self).__name__} must compute its estimate")

    def prepare(self, many: Sequence[Data]) -> None:
        """Compute together what `estimate` will need of several data, where that is faster (on a GPU). Changes no value."""

    def normalized(self, data: Data, raw: Estimate, normalization: Normalization) -> Estimate:
        """The same under a normalisation. Metrics whose N differs by prompt override it."""
        by = normalizer(normalization, raw.n, raw.d)
        return raw.scaled(1 / by) if by == by else raw.scaled(math.nan)

    def compute(self, normalization: Normalization = "raw") -> Estimate:
        """The value of everything seen so far; a ValueError before any of it."""
        if not len(self.data):  # type: ignore[arg-type]
            raise ValueError(f"{self.info.name}: no data yet, add some with update() first")
        raw = self.estimate(self.data)
        return raw if normalization == "raw" else self.normalized(self.data, raw, normalization)
