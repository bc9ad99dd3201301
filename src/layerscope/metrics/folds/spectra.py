"""Spectra of pooled vectors, whole and with each fold of prompts left out.

On a GPU all are solved in float32 first. Where its rounding could show in a value, the whole data's spectrum is solved in
float64; where it shows in the standard error, the folds are too. What follows from sums over a spectrum: see folds/sums.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from layerscope.core.statistics import jackknife_error
from layerscope.metrics.entropy import moved_by_rounding, rounding_floor
from layerscope.metrics.folds.grams import fold_matrices, whole_matrix
from layerscope.metrics.folds.sums import OfSums
from layerscope.metrics.options import RowPreparation
from layerscope.spectra import eigvalsh, joined, solve_together

if TYPE_CHECKING:
    from layerscope.metrics.samples import PooledRows

# float32 will do for the folds if it moves the whole data's value by less than this share of the standard error,
_SHARE_OF_ERROR = 0.25
# and for the value itself if it moves it by no more than this: nats of an entropy, a share of anything else.
NATS, SHARE = 2e-5, 2e-4

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Quantity:
    """A function of spectra along their last dimension, and how far rounding may move its value.

    `of_sums` is the same function of a spectrum's power sums, where there is one.
    """

    function: Function
    nats: bool = False
    of_sums: OfSums | None = None

    def allowed(self, value: float) -> float:
        """What rounding may do to this value."""
        return NATS if self.nats else SHARE * abs(value)


@dataclass
class Spectrum:
    """Eigenvalues (ascending, clamped at zero) of the prepared rows' Gram matrix, and those without each fold of prompts.

    `without` stacks folds of the same size (folds, n). Those solved in float32 have `exactly`, which solves the whole data's
    spectrum in float64 until `sharpen` has been given it, and `again`, which solves the folds in float64.
    """

    eigenvalues: Tensor
    without: list[Tensor]
    exactly: Callable[[], Tensor] | None = None
    again: Callable[[], list[Tensor]] | None = None
    rough: Tensor | None = None

    def evaluate(self, quantity: Quantity) -> tuple[float, float]:
        """(value, standard error) of a function of the eigenvalues along the last dimension."""
        function = quantity.function
        if self.exactly is not None and not self.settles(quantity):
            self.sharpen(self.exactly())
        value, error = float(function(self.eigenvalues)), self._error(function)
        if self.rough is not None and self.again is not None:
            moved = abs(float(function(self.rough)) - value) * self._folds
            if not moved <= _SHARE_OF_ERROR * error:
                self.without, self.rough = self.again(), None
                error = self._error(function)
        return value, error

    def settles(self, quantity: Quantity) -> bool:
        """Whether float32's rounding cannot show in the value or the standard error of a function."""
        if self.exactly is None:
            return True
        function = quantity.function
        moved = float(moved_by_rounding(function, self.eigenvalues))
        if not moved <= quantity.allowed(float(function(self.eigenvalues))):
            return False
        return moved * self._folds <= _SHARE_OF_ERROR * self._error(function)

    def sharpen(self, exact: Tensor) -> None:
        """Take over the whole data's spectrum from float64; what that shows to be empty is empty in the others as well.

        A Gram matrix has as many empty dimensions less as it has lost rows.
        """
        self.rough, self.eigenvalues, self.exactly = self.eigenvalues, exact, None
        empty = int((exact <= rounding_floor(exact)).sum())
        for values in (self.rough.unsqueeze(0), *self.without):
            values[:, : max(0, empty - (len(exact) - values.shape[1]))] = 0.0

    @property
    def _folds(self) -> float:
        """√ of their number: what rounding of a single value becomes in the standard error, at most."""
        return math.sqrt(sum(len(folds) for folds in self.without))

    def _error(self, function: Function) -> float:
        return jackknife_error([value for folds in self.without for value in function(folds).tolist()])


def pooled_spectrum(data: PooledRows, rows: RowPreparation, group: int | None = None, clamp: bool = False) -> Spectrum:
    """The spectrum of pooled vectors under a row preparation. Computed once per data and preparation."""
    if len(data) == 0:
        raise ValueError("no pooled vectors: add some with update() first")
    pooled_spectra([data], rows, group, clamp)
    return data._memo["spectrum", rows, group, clamp]


def pooled_spectra(
    many: Sequence[PooledRows], rows: RowPreparation, group: int | None, clamp: bool, quantity: Quantity | None = None
) -> None:
    """The spectra of several sites' vectors, solved together where they are on a GPU. Remembered in each data.

    Those that must be solved in float64 for the sake of `quantity` are solved together too.
    """
    key = ("spectrum", rows, group, clamp)
    there = [data for data in many if key not in data._memo and data.on_gpu]
    for data in many:
        if key not in data._memo and not data.on_gpu:
            whole, *without = fold_matrices(data, rows, group, clamp)
            data._memo[key] = Spectrum(_solve(whole), [_solve(folds) for folds in without])
    if there:
        for data, spectrum in zip(there, _solve_on_gpu(there, rows, group, clamp), strict=True):
            data._memo[key] = spectrum
    if quantity is not None:
        unsure = [data for data in many if not data._memo[key].settles(quantity)]
        if unsure:
            exact = _solve(torch.stack([whole_matrix(data, rows, group, clamp) for data in unsure]))
            for data, values in zip(unsure, exact, strict=True):
                data._memo[key].sharpen(values)


def _solve(matrices: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Eigenvalues, clamped at zero, float64 on the CPU."""
    return eigvalsh(matrices.to(dtype)).clamp(min=0).double().cpu()


def _solve_on_gpu(many: Sequence[PooledRows], rows: RowPreparation, group: int | None, clamp: bool) -> list[Spectrum]:
    """Whole spectra and those without folds in float32, each size in one batch over all the data."""
    made = [[m.float() for m in fold_matrices(data, rows, group, clamp)] for data in many]
    sizes = range(1, max(len(matrices) for matrices in made))
    batches = [torch.stack([site[0] for site in made]), *(joined([site[k] for site in made]) for k in sizes)]
    wholes, *stacked = [values.clamp(min=0).double().cpu() for values in solve_together(batches)]
    if rows.startswith("centered") and group is None and not clamp and all(len(data) <= data.width for data in many):
        wholes[:, 0] = 0.0  # rows that sum to zero, scaled or not, miss one dimension
    split = [iter(values.split([len(site[k]) for site in made])) for k, values in zip(sizes, stacked, strict=True)]
    return [
        Spectrum(
            wholes[i].clone(),
            [next(values) for values in split],
            partial(_solve_whole, data, rows, group, clamp),
            partial(_solve_folds, data, rows, group, clamp),
        )
        for i, data in enumerate(many)
    ]


def _solve_whole(data: PooledRows, rows: RowPreparation, group: int | None, clamp: bool) -> Tensor:
    return _solve(whole_matrix(data, rows, group, clamp))


def _solve_folds(data: PooledRows, rows: RowPreparation, group: int | None, clamp: bool) -> list[Tensor]:
    return [_solve(folds) for folds in fold_matrices(data, rows, group, clamp)[1:]]
