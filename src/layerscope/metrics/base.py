"""What a metric is: its facts, its estimate, and the accumulators that metrics derive from.

A new metric is one class: `info` and, by level, `measure` (token states: derive from `PromptMean`)
or `estimate` (pooled vectors or views: derive from `Metric`). A file in this folder, or an entry
point in the group `layerscope.metrics`, makes it known; tables, figures, studies and the report
then show it by what `info` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np
from torch import Tensor

from layerscope.metrics.entropy import Normalization, normalizer
from layerscope.metrics.options import Options
from layerscope.metrics.samples import PooledRows, PromptValues, ViewRows
from layerscope.metrics.tokens.norms import full_mask

__all__ = ["mean_over_prompts"]

Data = TypeVar("Data")
Level = Literal["tokens", "pooled", "views"]
Bounds = Callable[[int, int, Options], tuple[float, float]]


@dataclass(frozen=True)
class MetricInfo:
    """Facts about a metric that tables, plots, checks and layer selection read.

    `level` is what it is computed from: the token states of each prompt, the pooled vectors of all
    prompts, or the pooled vectors of several augmented views. `higher_means` says in words what a
    larger value says about the states. `bounds(n, d, options)` limits the raw value for n samples
    in d dimensions.

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
    bounds: Bounds
    bounds_text: str
    citation: str
    normalizations: tuple[Normalization, ...] = ("raw",)
    sinks: tuple[Literal["keep", "drop"], ...] = ("keep",)
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


@dataclass
class Estimate:
    """A value with what its uncertainty is computed from.

    `influence[i]` is the change of the value per unit of extra weight on prompt i (its first-order
    expansion), in the data's canonical order; a bootstrap over prompts needs no more. `se` with its
    degrees of freedom `df` is given instead where the spread comes from folds of prompts left out
    (spectra) or from permutations (DiME). `undefined` counts prompts without a value: they are left
    out, never averaged in.
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
        influence = None if self.influence is None else self.influence * by
        se = None if self.se is None else self.se * abs(by)
        return replace(self, value=self.value * by, influence=influence, se=se)

    def mapped(self, function: Callable[[float], float], slope: float) -> Estimate:
        """The estimate of a smooth function of this quantity, with its slope at the value."""
        out = self.scaled(slope)
        out.value = function(self.value)
        return out


_DATA: dict[str, Callable[[], Any]] = {
    "tokens": PromptValues,
    "pooled": PooledRows,
    "views": ViewRows,
}


class Metric(Generic[Data]):
    """An accumulator: `update` with samples, `compute` at the end.

    Batches and their order do not change the result. Several
    metrics that read the same samples may share one `data` (see `estimate`), which is how a profile
    computes them.
    """

    info: ClassVar[MetricInfo]
    data: Data

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.data = self.new_data()

    def new_data(self) -> Data:
        """An empty container for this metric's samples: what its level says."""
        return _DATA[self.info.level]()

    def update(self, *args: Any, **kwargs: Any) -> Self:
        """Add samples; the arguments are those of this metric's data."""
        self.data.update(*args, **kwargs)  # type: ignore[attr-defined]
        return self

    def estimate(self, data: Data) -> Estimate:
        """The raw value of this metric on some data, with its influences. Pure."""
        raise NotImplementedError(
            f"{type(self).__name__} does not define estimate(data), which returns the metric's Estimate."
        )

    def prepare(self, many: Sequence[Data]) -> Callable[[], None] | None:
        """Compute together what `estimate` will need of several data, where that is faster (on a
        GPU). Changes no value.

        What has to wait for the GPU may be returned: it is called before the first `estimate`, when
        other metrics have given the GPU their work.
        """
        return None

    def normalized(self, data: Data, raw: Estimate, normalization: Normalization) -> Estimate:
        """The same under a normalization. Metrics whose N differs by prompt override it."""
        by = normalizer(normalization, raw.n, raw.d)
        return raw.scaled(1 / by) if by == by else raw.scaled(math.nan)

    def compute(self, normalization: Normalization = "raw") -> Estimate:
        """The value of everything seen so far; a ValueError before any of it."""
        if not len(self.data):  # type: ignore[arg-type]
            raise ValueError(f"{self.info.name}: no data yet, add some with update() first")
        raw = self.estimate(self.data)
        return raw if normalization == "raw" else self.normalized(self.data, raw, normalization)


def mean_over_prompts(values: np.ndarray, width: int) -> Estimate:
    """The mean of per-prompt values; undefined ones (NaN) are left out and counted."""
    defined = np.isfinite(values)
    n = int(defined.sum())
    if n == 0:
        return Estimate(math.nan, 0, width, undefined=len(values))
    known = values if n == len(values) else values[defined]
    mean = float(known.mean())
    return Estimate(mean, n, width, (known - mean) / n, undefined=len(values) - n)


class PromptMean(Metric[PromptValues]):
    """Base of token metrics: the mean over prompts of one number per prompt.

    A subclass gives `measure`. `fused` names the field in which the capture already computes it
    beside others in one pass (see capture/reduce.py), with `{}` for the sink setting; a metric
    without one is measured inside the hooks.
    """

    fused: ClassVar[str | None] = None
    before_final_norm: ClassVar[bool] = (
        False  # `measure` is given the states without the final norm, whatever the run's setting
    )

    def measure(self, states: Tensor, mask: Tensor) -> Tensor:
        """One value per prompt (B,) of token states (B, T, D); `mask` (B, T) is False at padding.
        NaN: undefined."""
        raise NotImplementedError(
            f"{type(self).__name__} does not define measure(states, mask), which returns one value per prompt."
        )

    def field(self, sink: str) -> str:
        """Where a profile keeps the prompts' values: with the sink token (`keep`) or without it
        (`drop`)."""
        fused = self.fused_field()
        return f"{self.info.name}.{sink}" if fused is None else fused.format(sink)

    @classmethod
    def fused_field(cls) -> str | None:
        """`fused`, unless a subclass has replaced the `measure` that it stands for."""
        return next(
            (vars(kind).get("fused") for kind in cls.__mro__ if "measure" in vars(kind)), None
        )

    def from_field(self, values: np.ndarray) -> np.ndarray:
        """The prompts' values from what the field holds."""
        return values

    def update(self, states: Tensor, mask: Tensor | None = None, keys: Any = None) -> Self:
        """Add prompts: token states (B, T, D), with a mask (B, T) that is False at padding."""
        if states.ndim != 3:
            raise ValueError(
                f"expected token states (prompts, tokens, width), got shape {tuple(states.shape)}"
            )
        mask = full_mask(states) if mask is None else mask.bool()
        if mask.shape != states.shape[:2]:
            raise ValueError(
                f"mask of shape {tuple(mask.shape)} does not fit states of shape {tuple(states.shape)}"
            )
        self.data.update(self.measure(states, mask), mask.sum(-1), keys, width=states.shape[-1])
        return self

    def estimate(self, data: PromptValues) -> Estimate:
        return mean_over_prompts(data.ordered()[0], data.width or 0)
