"""Spectra of pooled vectors, and how a function of the spectrum moves when one prompt gets more weight.

N ≤ D: the N×N Gram matrix. N > D: the D×D scatter matrix, summed block by block, so memory is O(D²) for any N.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from layerscope.metrics.rows import RowPreparation, prepare_rows

if TYPE_CHECKING:
    from layerscope.metrics.samples import PooledRows, ViewRows

# Directions this much smaller than the largest are rounding, not data: they carry no influence.
_NOISE = 1e-13


@dataclass
class Spectrum:
    """Eigenvalues (ascending, clamped at zero) of the prepared rows' Gram matrix, with eigenvectors for influences."""

    data: PooledRows
    rows: RowPreparation
    group: int | None
    eigenvalues: Tensor
    vectors: Tensor  # N×N (Gram side) or D×D (scatter side)
    mean: Tensor | None
    gram_side: bool

    def evaluate(self, function: Callable[[Tensor], Tensor]) -> tuple[float, np.ndarray]:
        """(value, influence per prompt in canonical order) of a scalar function of the eigenvalues.

        First order: a weight w_i on prompt i changes M = Σ w_i z̃_i z̃_iᵀ, so dφ = Σ_k φ'_k v_kᵀ dM v_k; where rows are centred
        it also moves the mean that every row is measured from.
        """
        lam = self.eigenvalues.detach().clone().requires_grad_(True)
        with torch.inference_mode(False), torch.enable_grad():
            value = function(lam)
            (slope,) = torch.autograd.grad(value, lam)
        top = float(self.eigenvalues[-1])
        slope = torch.where((self.eigenvalues > _NOISE * top) & torch.isfinite(slope), slope, torch.zeros_like(slope))
        return float(value.detach()), self._influence(slope)

    def _influence(self, slope: Tensor) -> np.ndarray:
        direct, pulls = [], torch.zeros(self.data.width, dtype=torch.float64)
        mean = self.mean if self.rows == "centered-unit" and self.group is None else None
        for z, prepared, pushed in self._pushed_rows(slope):
            direct.append((pushed * prepared).sum(-1))
            if mean is not None:
                length = torch.linalg.vector_norm(z - mean, dim=-1, keepdim=True)
                alive = prepared.abs().sum(-1, keepdim=True) > 0
                along = (pushed * prepared).sum(-1, keepdim=True) * prepared
                pulls -= torch.where(alive, 2 * (pushed - along) / length, 0.0).sum(0)
        influence = torch.cat(direct)
        if mean is not None:
            influence = influence + torch.cat([(z - mean) @ pulls for z in self._rows_again()]) / len(self.data)
        out = (influence - influence.mean()).numpy()
        return out if self.gram_side else self.data.to_canonical(out)

    def _rows_again(self) -> Iterator[Tensor]:
        if self.gram_side:
            yield self.data.all()
        else:
            yield from self.data.blocks()

    def _pushed_rows(self, slope: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(row, prepared row, Σ_k slope_k v_k v_kᵀ applied to it), block by block."""
        if self.gram_side:
            z = self.data.all()
            prepared = _prepared_all(self.data, self.rows, self.mean, self.group)
            yield z, prepared, (self.vectors * slope) @ (self.vectors.T @ prepared)
        else:
            push = (self.vectors * slope) @ self.vectors.T
            for z in self.data.blocks(self.group):
                prepared = prepare_grouped(z, self.rows, self.mean, self.group)
                yield z, prepared, prepared @ push


def prepare_grouped(z: Tensor, rows: RowPreparation, mean: Tensor | None, group: int | None) -> Tensor:
    """Rows prepared as asked; with `group`, centred inside consecutive groups as the released code does."""
    if group is None or not rows.startswith("centered"):
        return prepare_rows(z, rows, mean)
    return torch.cat([prepare_rows(part, rows) for part in z.split(group)])


def _prepared_all(data: PooledRows, rows: RowPreparation, mean: Tensor | None, group: int | None) -> Tensor:
    """All rows, prepared, in canonical order; groups are taken in order of arrival."""
    if group is None:
        return prepare_rows(data.all(), rows, mean)
    return prepare_grouped(torch.cat(list(data.blocks())), rows, mean, group)[data.order()]


def prepared_view(data: ViewRows, index: int, rows: RowPreparation, group: int | None) -> Tensor:
    """One view's vectors, prepared, in canonical order; groups are taken in order of arrival."""
    if group is None:
        return prepare_rows(data.view(index), rows)
    return prepare_grouped(torch.cat([z[:, index] for z in data.blocks()]), rows, None, group)[data.order()]


def pooled_spectrum(data: PooledRows, rows: RowPreparation, group: int | None = None, clamp: bool = False) -> Spectrum:
    """The spectrum of pooled vectors under a row preparation. Computed once per data and preparation."""
    key = ("spectrum", rows, group, clamp)
    if key in data._memo:
        return data._memo[key]
    n, d = len(data), data.width
    if n == 0:
        raise ValueError("no pooled vectors: add some with update() first")
    mean = None
    if rows.startswith("centered"):
        total = torch.zeros(d, dtype=torch.float64)
        for z in data.blocks():
            total += z.sum(0)
        mean = total / n
    gram_side = n <= d
    if gram_side:
        prepared = _prepared_all(data, rows, mean, group)
        matrix = prepared @ prepared.T
    else:
        matrix = torch.zeros(d, d, dtype=torch.float64)
        for z in data.blocks(group):
            prepared = prepare_grouped(z, rows, mean, group)
            matrix.addmm_(prepared.T, prepared)
    if clamp:
        matrix = matrix.clamp(min=0)
    lam, vectors = torch.linalg.eigh(matrix)
    out = Spectrum(data, rows, group, lam.clamp(min=0), vectors, mean, gram_side)
    data._memo[key] = out
    return out
