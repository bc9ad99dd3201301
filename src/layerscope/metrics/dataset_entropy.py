"""Dataset entropy: S_α of the N mean-pooled prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from torch import Tensor

from layerscope.metrics.base import Estimate, Metric, MetricInfo
from layerscope.metrics.entropy import NORMALIZATIONS, spectrum_entropy
from layerscope.metrics.folds import (
    OfSums,
    Quantity,
    can_use_sums,
    entropy_of_sums,
    evaluate_sums,
    in_groups,
    pooled_spectra,
    pooled_spectrum,
    prepare_fold_sums,
)
from layerscope.metrics.options import Options, RowPreparation
from layerscope.metrics.samples import PooledRows, n_folds


def rank_bound(n: int, d: int, options: Options) -> tuple[float, float]:
    """1 to min(N, D)."""
    return 1.0, float(max(1, min(n, d)))


class PooledSpectrumMetric(Metric[PooledRows]):
    """Base of metrics that are a function of the eigenvalues (along the last dimension) of the
    pooled vectors' Gram matrix.

    `of_sums` is the same function of their power sums (see folds.py), where there is one.
    `own_rows` says how the vectors are prepared, where that is not up to the options.
    """

    function: Callable[[Tensor], Tensor]
    of_sums: OfSums | None = None
    own_rows: ClassVar[RowPreparation | None] = None

    def _given(self, data: PooledRows) -> tuple[PooledRows, RowPreparation]:
        return in_groups(data, self.own_rows or self.options.pooled_rows, self.options.group)

    def _quantity(self) -> Quantity:
        return Quantity(self.function, self.info.unit == "nats", self.of_sums)

    def prepare(self, many: Sequence[PooledRows]) -> None:
        if not many:
            return
        o, quantity = self.options, self._quantity()
        given = [self._given(data) for data in many]
        many, rows = [data for data, _ in given], given[0][1]
        summed = [
            data
            for data in many
            if quantity.of_sums is not None and can_use_sums(data, o.clamp_gram)
        ]
        if summed and summed[0].on_gpu:
            prepare_fold_sums(summed, rows)
        solved = [data for data in many if len(data) and not any(data is other for other in summed)]
        pooled_spectra(solved, rows, o.clamp_gram, quantity)

    def estimate(self, data: PooledRows) -> Estimate:
        """The value and its standard error. Undefined (NaN) where no vector has a direction, as for
        a single prompt."""
        o, quantity, value, se = self.options, self._quantity(), math.nan, math.nan
        data, rows = self._given(data)
        if quantity.of_sums is not None and can_use_sums(data, o.clamp_gram):
            value, se = evaluate_sums(data, rows, quantity.of_sums)
        else:
            spectrum = pooled_spectrum(data, rows, o.clamp_gram)
            if float(spectrum.eigenvalues[-1]) > 0:
                value, se = spectrum.evaluate(quantity)
        if not math.isfinite(
            value
        ):  # no vector has a direction; or a slope needs two eigenvalues, say
            return Estimate(math.nan, len(data), data.width, undefined=len(data))
        return Estimate(value, len(data), data.width, se=se, df=n_folds(len(data)) - 1)


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
        bounds=lambda n, d, o: (0.0, math.log(max(1, min(n, d)))),
        bounds_text="0 to log min(N, D)",
        citation="Skean et al. 2025, Eq. 1",
        normalizations=NORMALIZATIONS,
        core=True,
        heading="dataset\nentropy",
        order=30,
    )

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options)
        self.function = partial(spectrum_entropy, alpha=self.options.alpha)
        self.of_sums = entropy_of_sums if self.options.alpha == 1 else None
