"""Entropies and ranks of pooled vectors, with each fold of prompts left out, from sums over spectra that need not be solved.

Leaving a fold out of an N×N Gram matrix removes its rows: spectra/resolvents.py gives the sums over what remains from one
decomposition, where solving 20 more matrices would take ten times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from layerscope.metrics.fold_grams import fold_members, whole_matrix
from layerscope.metrics.jackknife import standard_error
from layerscope.metrics.rows import RowPreparation
from layerscope.spectra.factors import fast_doubles
from layerscope.spectra.resolvents import sums_without

if TYPE_CHECKING:
    from layerscope.metrics.samples import PooledRows

FEWEST = 64  # rows: spectra of smaller matrices are as fast to solve
_GRAM_BYTES = 2**30  # of matrices that go to the GPU's solver together

OfSums = Callable[[Tensor], Tensor]


def entropy_of_sums(sums: Tensor) -> Tensor:
    """S_1 from (Σ x, Σ x log x, Σ √x, Σ √x log x) along the last dimension."""
    return (sums[..., 0].log() - sums[..., 1] / sums[..., 0]).clamp(min=0)


def effective_rank_of_sums(sums: Tensor) -> Tensor:
    """exp of the entropy of q ∝ √x, from the same sums."""
    return (sums[..., 2].log() - sums[..., 3] / (2 * sums[..., 2])).clamp(min=0).exp()


@dataclass(frozen=True)
class FoldSums:
    """The power sums of a spectrum (4,), and of those without each fold (folds, 4)."""

    whole: Tensor
    without: Tensor

    @property
    def empty(self) -> bool:
        """Whether no vector has a direction."""
        return not float(self.whole[0]) > 0

    def evaluate(self, function: OfSums) -> tuple[float, float]:
        """(value, standard error) of a function of the sums."""
        return float(function(self.whole)), standard_error(function(self.without).tolist())


def summable(data: PooledRows, clamp: bool) -> bool:
    """Whether folds can be left out of the Gram matrix that way, and whether it pays."""
    if clamp or not FEWEST <= len(data) <= data.width:  # clamped matrices may have negative eigenvalues
        return False
    return not data.on_gpu or fast_doubles(data.device)


def prepare_fold_sums(many: Sequence[PooledRows], rows: RowPreparation, group: int | None) -> None:
    """The sums of several data, together where they are on a GPU. Remembered in each."""
    left = [data for data in many if ("sums", rows, group) not in data._memo]
    while left:
        n = len(left[0])
        most = max(1, _GRAM_BYTES // (8 * n * n)) if left[0].on_gpu else 1
        some = [data for data in left if len(data) == n and data.device == left[0].device][:most]
        grams = torch.stack([whole_matrix(data, rows, group, False) for data in some])
        whole, without = (sums.cpu() for sums in sums_without(grams, fold_members(n, grams.device)))
        for i, data in enumerate(some):
            data._memo["sums", rows, group] = FoldSums(whole[i], without[i])
        left = [data for data in left if ("sums", rows, group) not in data._memo]


def pooled_sums(data: PooledRows, rows: RowPreparation, group: int | None) -> FoldSums:
    """The sums of one data. Computed once per data and preparation."""
    prepare_fold_sums([data], rows, group)
    return data._memo["sums", rows, group]
