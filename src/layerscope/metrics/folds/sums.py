"""Entropies and ranks of pooled vectors, with each fold of prompts left out, from sums over spectra that need not be solved.

Leaving a fold out of an N×N Gram matrix removes its rows: spectra/resolvents.py gives the sums over what remains from one
decomposition, where solving 20 more matrices would take ten times as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from layerscope.core.statistics import jackknife_error
from layerscope.metrics.folds.grams import fold_members, whole_matrices
from layerscope.metrics.options import RowPreparation
from layerscope.spectra.resolvents import fast_doubles, sums_without

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


def entropy_rank_of_sums(sums: Tensor) -> Tensor:
    """exp(S_1), from the same sums."""
    return entropy_of_sums(sums).exp()


class SumsOfMany:
    """The power sums of several spectra (B, 4), and of those without each fold (B, folds, 4).

    On a GPU they may still be on their way: nobody waits for them before a value is asked for.
    """

    def __init__(self, whole: Tensor, without: Tensor) -> None:
        self._there = whole, without
        self._values: dict[OfSums, tuple[list[float], list[list[float]]]] = {}

    @cached_property
    def _here(self) -> tuple[Tensor, Tensor]:
        whole, without = self._there
        return whole.cpu(), without.cpu()

    def evaluate(self, function: OfSums, index: int) -> tuple[float, float]:
        """(value, standard error) of a function of one spectrum's sums; NaN where no vector has a direction."""
        whole, without = self._here
        if function not in self._values:  # of all at once: single numbers are slow
            self._values[function] = function(whole).tolist(), function(without).tolist()
        values, left_out = self._values[function]
        if not float(whole[index, 0]) > 0:
            return math.nan, math.nan
        return values[index], jackknife_error(left_out[index])


@dataclass(frozen=True)
class FoldSums:
    """One data's place among the sums of many."""

    many: SumsOfMany
    index: int

    def evaluate(self, function: OfSums) -> tuple[float, float]:
        """(value, standard error) of a function of the sums; NaN where no vector has a direction."""
        return self.many.evaluate(function, self.index)


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
        grams = whole_matrices(some, rows, group)
        sums = SumsOfMany(*sums_without(grams, fold_members(n, grams.device)))
        for i, data in enumerate(some):
            data._memo["sums", rows, group] = FoldSums(sums, i)
        left = [data for data in left if ("sums", rows, group) not in data._memo]


def pooled_sums(data: PooledRows, rows: RowPreparation, group: int | None) -> FoldSums:
    """The sums of one data. Computed once per data and preparation."""
    prepare_fold_sums([data], rows, group)
    return data._memo["sums", rows, group]
