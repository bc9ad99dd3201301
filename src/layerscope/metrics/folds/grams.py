"""Gram matrices of pooled vectors, of all and without each fold of prompts.

N ≤ D: the N×N Gram matrix. N > D: the D×D scatter matrix, summed block by block, so memory is O(D²) for any N. Rows are prepared
once, with the mean of all: what a fold leaves behind is a part of the same matrix (docs/decisions/intervals.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from layerscope.metrics.options import RowPreparation, prepare_rows
from layerscope.metrics.samples import n_folds, stacked

if TYPE_CHECKING:
    from layerscope.metrics.samples import PooledRows, ViewRows


def prepare_grouped(z: Tensor, rows: RowPreparation, mean: Tensor | None, group: int | None) -> Tensor:
    """Rows prepared as asked; with `group`, centered inside consecutive groups as the released code does."""
    if group is None or not rows.startswith("centered"):
        return prepare_rows(z, rows, mean)
    return torch.cat([prepare_rows(part, rows) for part in z.split(group)])


def prepared_view(data: ViewRows, index: int, rows: RowPreparation, group: int | None) -> Tensor:
    """One view's vectors, prepared, in canonical order; groups are taken in order of arrival."""
    if group is None:
        return prepare_rows(data.view(index), rows)
    prepared = prepare_grouped(torch.cat([z[:, index] for z in data.blocks()]), rows, None, group)
    return prepared[torch.from_numpy(data.order()).to(prepared.device)]


def fold_members(n: int, device: torch.device) -> list[Tensor]:
    """Which of n samples in canonical order are in which fold (folds, size): at most two sizes, each stacked."""
    folds = n_folds(n)
    if not folds:
        return []
    larger = n % folds
    at = torch.arange(folds, device=device).unsqueeze(-1) + folds * torch.arange(-(-n // folds), device=device)
    return [part for part in (at[:larger], at[larger:, : n // folds]) if part.numel()]


def left_in(members: Tensor, n: int) -> Tensor:
    """Which of n samples are left without each fold (folds, n − size), given which are in it (folds, size).

    Every `folds`-th sample is in the same fold, so between two that are left out all others follow in order.
    """
    folds, size = members.shape
    at = torch.arange(n - size, device=members.device).expand(folds, -1)
    return at + torch.searchsorted(members - torch.arange(size, device=members.device), at.contiguous(), right=True)


def fold_matrices(data: PooledRows, rows: RowPreparation, group: int | None, clamp: bool) -> list[Tensor]:
    """The matrix of all rows (n, n), then those without each fold (folds, m, m): stacked by size on a GPU, else one by one."""
    made = _grams(data, rows, group) if len(data) <= data.width else _scatters(data, rows, group)
    return [m.clamp(min=0) for m in made] if clamp else made


def whole_matrix(data: PooledRows, rows: RowPreparation, group: int | None, clamp: bool) -> Tensor:
    """The matrix of all rows alone."""
    if len(data) > data.width:
        return fold_matrices(data, rows, group, clamp)[0]
    prepared = _prepared(data, data.all(), rows, group)
    gram = prepared @ prepared.T
    return gram.clamp(min=0) if clamp else gram


def whole_matrices(many: Sequence[PooledRows], rows: RowPreparation, group: int | None) -> Tensor:
    """The N×N matrices of several data of as many rows each (B, N, N): on a GPU all at once."""
    if group is not None or not many[0].on_gpu:
        return torch.stack([whole_matrix(data, rows, group, False) for data in many])
    prepared = prepare_rows(stacked(many), rows)
    return prepared @ prepared.mT


def _prepared(data: PooledRows, z: Tensor, rows: RowPreparation, group: int | None) -> Tensor:
    if group is None:
        return prepare_rows(z, rows)
    order = torch.from_numpy(data.order()).to(z.device)
    return prepare_grouped(torch.cat(list(data.blocks())), rows, None, group)[order]


def _grams(data: PooledRows, rows: RowPreparation, group: int | None) -> list[Tensor]:
    """N×N."""
    prepared = _prepared(data, data.all(), rows, group)
    gram = prepared @ prepared.T
    out = [gram]
    for members in fold_members(len(gram), gram.device):
        rest = left_in(members, len(gram))
        out += [gram[some.unsqueeze(-1), some.unsqueeze(-2)] for some in ([rest] if data.on_gpu else rest.split(1))]
    return out


def _scatters(data: PooledRows, rows: RowPreparation, group: int | None) -> list[Tensor]:
    """D×D."""
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
