"""Spectra of pooled vectors, whole and with each fold of prompts left out.

N ≤ D: the N×N Gram matrix. N > D: the D×D scatter matrix, summed block by block, so memory is O(D²) for any N.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from layerscope.metrics.jackknife import n_folds, standard_error
from layerscope.metrics.rows import RowPreparation, prepare_rows
from layerscope.spectra import eigvalsh

if TYPE_CHECKING:
    from layerscope.metrics.samples import PooledRows, ViewRows


@dataclass
class Spectrum:
    """Eigenvalues (ascending, clamped at zero) of the prepared rows' Gram matrix, and those without each fold of prompts."""

    eigenvalues: Tensor
    without: list[Tensor]

    def evaluate(self, function: Callable[[Tensor], Tensor]) -> tuple[float, float]:
        """(value, standard error) of a scalar function of the eigenvalues."""
        left_out = [float(function(lam)) for lam in self.without]
        return float(function(self.eigenvalues)), standard_error(left_out)


def prepare_grouped(z: Tensor, rows: RowPreparation, mean: Tensor | None, group: int | None) -> Tensor:
    """Rows prepared as asked; with `group`, centred inside consecutive groups as the released code does."""
    if group is None or not rows.startswith("centered"):
        return prepare_rows(z, rows, mean)
    return torch.cat([prepare_rows(part, rows) for part in z.split(group)])


def prepared_view(data: ViewRows, index: int, rows: RowPreparation, group: int | None) -> Tensor:
    """One view's vectors, prepared, in canonical order; groups are taken in order of arrival."""
    if group is None:
        return prepare_rows(data.view(index), rows)
    return prepare_grouped(torch.cat([z[:, index] for z in data.blocks()]), rows, None, group)[data.order()]


def pooled_spectrum(data: PooledRows, rows: RowPreparation, group: int | None = None, clamp: bool = False) -> Spectrum:
    """The spectrum of pooled vectors under a row preparation. Computed once per data and preparation."""
    key = ("spectrum", rows, group, clamp)
    if key not in data._memo:
        if len(data) == 0:
            raise ValueError("no pooled vectors: add some with update() first")
        by_gram = len(data) <= data.width
        matrices = _grams(data, rows, group) if by_gram else _scatters(data, rows, group)
        whole, *without = [eigvalsh(m.clamp(min=0) if clamp else m).clamp(min=0) for m in matrices]
        data._memo[key] = Spectrum(whole, without)
    return data._memo[key]


def _grams(data: PooledRows, rows: RowPreparation, group: int | None) -> list[Tensor]:
    """N×N: of all rows, then without each fold; rows are prepared anew among those that stay."""
    z = data.all()
    if group is None:
        prepared = prepare_rows(z, rows)
    else:
        prepared = prepare_grouped(torch.cat(list(data.blocks())), rows, None, group)[data.order()]
    out = [prepared @ prepared.T]
    folds = n_folds(len(z))
    at = torch.arange(len(z))
    for fold in range(folds):
        stay = at % folds != fold
        kept = prepared[stay] if group is not None else prepare_rows(z[stay], rows)
        out.append(kept @ kept.T)
    return out


def _scatters(data: PooledRows, rows: RowPreparation, group: int | None) -> list[Tensor]:
    """D×D: of all rows, then without each fold. With N > D the mean hardly depends on a fold: the whole data's is used."""
    d = data.width
    mean = None
    if rows.startswith("centered"):
        mean = torch.zeros(d, dtype=torch.float64)
        for z in data.blocks():
            mean += z.sum(0)
        mean /= len(data)
    whole = torch.zeros(d, d, dtype=torch.float64)
    for z in data.blocks(group):
        prepared = prepare_grouped(z, rows, mean, group)
        whole.addmm_(prepared.T, prepared)
    out = [whole]
    for fold in range(n_folds(len(data))):
        prepared = prepare_rows(data.fold(fold), rows, mean)
        out.append(whole - prepared.T @ prepared)
    return out
