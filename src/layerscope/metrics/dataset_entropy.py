"""Dataset entropy: S_α of the N mean-pooled prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from layerscope.metrics.base import Estimate, Metric, MetricInfo
from layerscope.metrics.entropy import NORMALIZATIONS, spectrum_entropy
from layerscope.metrics.jackknife import n_folds
from layerscope.metrics.options import Options
from layerscope.metrics.registry import register
from layerscope.metrics.rows import RowPreparation
from layerscope.metrics.samples import PooledRows
from layerscope.metrics.spectrum import Quantity, pooled_spectra, pooled_spectrum


def log_rank_bound(n: int, d: int, options: Options) -> tuple[float, float]:
    """0 to log min(N, D)."""
    return 0.0, math.log(max(1, min(n, d)))


def rank_bound(n: int, d: int, options: Options) -> tuple[float, float]:
    """1 to min(N, D)."""
    return 1.0, float(max(1, min(n, d)))


class PooledSpectrumMetric(Metric[PooledRows]):
    """Base of metrics that are a function of the spectrum of the pooled vectors."""

    def new_data(self) -> PooledRows:
        """Pooled vectors."""
        return PooledRows()

    def rows(self) -> RowPreparation:
        """How the pooled vectors are prepared."""
        return self.options.pooled_rows

    def function(self) -> Callable[[Tensor], Tensor]:
        """The function of the eigenvalues."""
        raise NotImplementedError(f"{type(self).__name__} must give a function of the spectrum")

    def _quantity(self) -> Quantity:
        return Quantity(self.function(), self.info.unit == "nats")

    def prepare(self, many: Sequence[PooledRows]) -> None:
        """The spectra of several data, solved together."""
        o = self.options
        pooled_spectra([data for data in many if len(data)], self.rows(), o.group, o.clamp_gram, self._quantity())

    def estimate(self, data: PooledRows) -> Estimate:
        """The value and its standard error. Undefined (NaN) where no vector has a direction, as for a single prompt."""
        spectrum = pooled_spectrum(data, self.rows(), self.options.group, self.options.clamp_gram)
        if float(spectrum.eigenvalues[-1]) <= 0:
            return Estimate(math.nan, len(data), data.width, undefined=len(data))
        value, se = spectrum.evaluate(self._quantity())
        if not math.isfinite(value):  # a slope needs two eigenvalues, say
            return Estimate(math.nan, len(data), data.width, undefined=len(data))
        return Estimate(value, len(data), data.width, se=se, df=n_folds(len(data)) - 1)


@register
class DatasetEntropy(PooledSpectrumMetric):
    """How many directions the pooled vectors of all prompts spread over; D×D when N > D.

    >>> import torch
    >>> rows = torch.eye(4).repeat(2, 1) * torch.tensor([1.0, -1.0]).repeat_interleave(4)[:, None]
    >>> round(DatasetEntropy().update(rows).compute().value, 4)  # ± four axes: log 4
    1.3863
    """

    info = MetricInfo(
        name="dataset_entropy",
        title="Dataset entropy",
        level="pooled",
        unit="nats",
        higher_means="prompts spread over more directions",
        bounds=log_rank_bound,
        bounds_text="0 to log min(N, D)",
        citation="Skean et al. 2025, Eq. 1",
        normalizations=NORMALIZATIONS,
        core=True,
    )

    def function(self) -> Callable[[Tensor], Tensor]:
        """S_α."""
        return lambda lam: spectrum_entropy(lam, self.options.alpha)
