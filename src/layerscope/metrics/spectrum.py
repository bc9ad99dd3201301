"""Spectra of pooled vectors, whole and with each fold of prompts left out.

N ≤ D: the N×N Gram matrix. N > D: the D×D scatter matrix, summed block by block, so memory is O(D²) for any N. On a GPU the
folds, which only give a standard error, are solved in float32; where that shows they are solved again in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from layerscope.metrics.entropy import rounding_floor
from layerscope.metrics.jackknife import n_folds, standard_error
from layerscope.metrics.rows import RowPreparation, prepare_rows
from layerscope.spectra import eigvalsh, joined

if TYPE_CHECKING:
    from layerscope.metrics.samples import PooledRows, ViewRows

# float32 will do for the folds if it moves the whole data's value by less than this share of the standard error.
_SHARE_OF_ERROR = 0.25


@dataclass
class Spectrum:
    """Eigenvalues (ascending, clamped at zero) of the prepared rows' Gram matrix, and those without each fold of prompts.

    `without` stacks folds of the same size (folds, n). Where the folds were solved in float32, `rough` is the whole data's
    spectrum solved like them and `again` solves them in float64.
    """

    eigenvalues: Tensor
    without: list[Tensor]
    rough: Tensor | None = None
    again: Callable[[], list[Tensor]] | None = None

    def evaluate(self, function: Callable[[Tensor], Tensor]) -> tuple[float, float]:
        """(value, standard error) of a function of the eigenvalues along the last dimension."""
        value = float(function(self.eigenvalues))
        error = self._error(function)
        if self.rough is not None and self.again is not None:
            moved = abs(float(function(self.rough)) - value) * math.sqrt(sum(len(folds) for folds in self.without))
            if not moved <= _SHARE_OF_ERROR * error:
                self.without, self.rough = self.again(), None
                error = self._error(function)
        return value, error

    def _error(self, function: Callable[[Tensor], Tensor]) -> float:
        return standard_error([value for folds in self.without for value in function(folds).tolist()])


def prepare_grouped(z: Tensor, rows: RowPreparation, mean: Tensor | None, group: int | None) -> Tensor:
    """Rows prepared as asked; with `group`, centred inside consecutive groups as the released code does."""
    if group is None or not rows.startswith("centered"):
        return prepare_rows(z, rows, mean)
    return torch.cat([prepare_rows(part, rows) for part in z.split(group)])


def prepared_view(data: ViewRows, index: int, rows: RowPreparation, group: int | None) -> Tensor:
    """One view's vectors, prepared, in canonical order; groups are taken in order of arrival."""
    if group is None:
        return prepare_rows(data.view(index), rows)
    prepared = prepare_grouped(torch.cat([z[:, index] for z in data.blocks()]), rows, None, group)
    return prepared[torch.from_numpy(data.order()).to(prepared.device)]


def pooled_spectrum(data: PooledRows, rows: RowPreparation, group: int | None = None, clamp: bool = False) -> Spectrum:
    """The spectrum of pooled vectors under a row preparation. Computed once per data and preparation."""
    if len(data) == 0:
        raise ValueError("no pooled vectors: add some with update() first")
    pooled_spectra([data], rows, group, clamp)
    return data._memo["spectrum", rows, group, clamp]


def pooled_spectra(many: Sequence[PooledRows], rows: RowPreparation, group: int | None, clamp: bool) -> None:
    """The spectra of several sites' vectors, solved together where they are on a GPU. Remembered in each data."""
    key = ("spectrum", rows, group, clamp)
    there: list[PooledRows] = []
    here: list[PooledRows] = []
    for data in many:
        if key not in data._memo:
            (there if data.on_gpu else here).append(data)
    for data in here:
        whole, *without = _matrices(data, rows, group, clamp)
        data._memo[key] = Spectrum(_solve(whole), [_solve(folds) for folds in without])
    if there:
        for data, spectrum in zip(there, _solve_on_gpu(there, rows, group, clamp), strict=True):
            data._memo[key] = spectrum


def _solve(matrices: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Eigenvalues, clamped at zero, float64 on the CPU."""
    return eigvalsh(matrices.to(dtype)).clamp(min=0).double().cpu()


def _solve_on_gpu(many: Sequence[PooledRows], rows: RowPreparation, group: int | None, clamp: bool) -> list[Spectrum]:
    """Whole spectra in float64, and in float32 beside those of the folds; each size in one batch over all the data."""
    exact, rough = [], []
    for data in many:
        whole, *without = _matrices(data, rows, group, clamp)
        exact.append(whole)
        rough.append([whole.float().unsqueeze(0), *(folds.float() for folds in without)])
    wholes = _solve(torch.stack(exact))
    empty = (wholes <= rounding_floor(wholes)).sum(-1)  # directions that are not there
    sizes = range(max(len(matrices) for matrices in rough))
    stacked = [_solve(joined([site[k] for site in rough]), torch.float32) for k in sizes]
    split = [iter(values.split([len(site[k]) for site in rough])) for k, values in zip(sizes, stacked, strict=True)]
    out = []
    for i, data in enumerate(many):
        near, *without = [next(values) for values in split]
        for values in (near, *without):
            values[:, : int(empty[i])] = 0.0
        again = _in_double(data, rows, group, clamp)
        out.append(Spectrum(wholes[i], without, near[0], again))
    return out


def _in_double(data: PooledRows, rows: RowPreparation, group: int | None, clamp: bool) -> Callable[[], list[Tensor]]:
    return lambda: [_solve(folds) for folds in _matrices(data, rows, group, clamp)[1:]]


def fold_members(n: int, device: torch.device) -> list[Tensor]:
    """Which of n samples in canonical order are in which fold (folds, size): at most two sizes, each stacked."""
    folds = n_folds(n)
    if not folds:
        return []
    larger = n % folds
    at = torch.arange(folds, device=device).unsqueeze(-1) + folds * torch.arange(-(-n // folds), device=device)
    return [part for part in (at[:larger], at[larger:, : n // folds]) if part.numel()]


def _matrices(data: PooledRows, rows: RowPreparation, group: int | None, clamp: bool) -> list[Tensor]:
    """The matrix of all rows (n, n), then those without each fold (folds, m, m): stacked by size on a GPU, else one by one."""
    made = _grams(data, rows, group) if len(data) <= data.width else _scatters(data, rows, group)
    return [m.clamp(min=0) for m in made] if clamp else made


def _grams(data: PooledRows, rows: RowPreparation, group: int | None) -> list[Tensor]:
    """N×N; rows are prepared anew among those that stay."""
    z = data.all()
    if group is None:
        prepared = prepare_rows(z, rows)
    else:
        order = torch.from_numpy(data.order()).to(z.device)
        prepared = prepare_grouped(torch.cat(list(data.blocks())), rows, None, group)[order]
    out = [prepared @ prepared.T]
    for members in fold_members(len(z), z.device):
        stay = torch.ones(len(members), len(z), dtype=torch.bool, device=z.device).scatter_(1, members, False)
        rest = stay.nonzero()[:, 1].view(len(members), -1)
        for some in [rest] if data.on_gpu else rest.split(1):
            kept = prepared[some] if group is not None else prepare_rows(z[some], rows)
            out.append(kept @ kept.mT)
    return out


def _scatters(data: PooledRows, rows: RowPreparation, group: int | None) -> list[Tensor]:
    """D×D. With N > D the mean hardly depends on a fold: the whole data's is used."""
    d = data.width
    mean = None
    if rows.startswith("centered"):
        mean = torch.zeros(d, dtype=torch.float64, device=data.device)
        for z in data.blocks():
            mean += z.sum(0)
        mean /= len(data)
    if group is None:
        # one pass: the scatter of each fold, from which the whole and what is left without a fold follow
        folds = torch.zeros(n_folds(len(data)), d, d, dtype=torch.float64, device=data.device)
        for z, members in data.blocks_by_fold():
            prepared = prepare_rows(z, rows, mean)
            for scatter, rows_of in zip(folds, members, strict=True):
                some = prepared[rows_of]
                scatter.addmm_(some.T, some)
        whole = folds.sum(0)
        without = list(folds.neg_().add_(whole).unbind())
    else:
        whole = torch.zeros(d, d, dtype=torch.float64, device=data.device)
        for z in data.blocks(group):
            prepared = prepare_grouped(z, rows, mean, group)
            whole.addmm_(prepared.T, prepared)
        without = []
        for fold in range(n_folds(len(data))):
            left = whole.clone()
            for z in data.fold_blocks(fold):
                prepared = prepare_rows(z, rows, mean)
                left.addmm_(prepared.T, prepared, alpha=-1.0)
            without.append(left)
    if data.on_gpu and without:
        return [whole, torch.stack(without)]
    return [whole, *(m.unsqueeze(0) for m in without)]
