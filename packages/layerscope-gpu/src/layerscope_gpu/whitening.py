"""Scatter between groups, whitened by the scatter within them, for several data sets at once: of
all groups and without each fold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from layerscope_gpu.factors import inverse_factor

Solve = Callable[[Tensor], Tensor]


def whitened(
    inner: Tensor, off: Tensor, members: Sequence[Tensor], delta: float, by_products: bool
) -> list[Tensor]:
    """Return matrices with the eigenvalues of Σ_w^{-1/2} Σ_b Σ_w^{-1/2}, δ added to Σ_w's diagonal.

    The first holds all groups (B, n, n), float64; the others leave out each fold, stacked by size
    (B, folds, m, m), float32. Where there are more groups than dimensions, they are D×D.

    `inner` (B, n, q, D), float64, holds the rows of each group minus its center, the groups fold by
    fold. `off` (B, n, D) holds the centers minus their mean, in the order of the numbers in
    `members`: one tensor (folds, size) for each size of folds. `by_products` multiplies by inverse
    factors instead of solving, which is faster where float64 products are fast.
    """
    n, q, d = inner.shape[1:]
    by_size = zip(inner.split([fold.numel() for fold in members], dim=1), members, strict=True)
    within_of = [_squared(rows.unflatten(1, fold.shape).flatten(2, 3)) for rows, fold in by_size]
    within = torch.stack([inside.sum(1) for inside in within_of]).sum(0)
    by_groups = n <= d
    between = torch.zeros(0) if by_groups else off.mT @ off
    # one factorization for all groups and without each fold: a few large matrices take as long as
    # one
    sizes = [1, *(len(fold) for fold in members)]
    noises = within.new_empty(len(inner) * sum(sizes), d, d)
    whole, *without = _by_size(noises, sizes)
    torch.mul(within.unsqueeze(1), 1 / (n * q), out=whole)
    for fold, inside, noise in zip(members, within_of, without, strict=True):
        share = 1 / ((n - fold.shape[1]) * q)
        torch.sub((share * within).unsqueeze(1), inside, alpha=share, out=noise)
    del within_of
    noises.diagonal(dim1=-2, dim2=-1).add_(delta)
    solvers = _solvers(noises, sizes, by_products)
    all_groups = (off / math.sqrt(n) if by_groups else between / n).unsqueeze(1)
    out = [_whiten(solvers[0], all_groups, by_groups).squeeze(1)]
    for fold, solve in zip(members, solvers[1:], strict=True):
        count = n - fold.shape[1]
        shift = -off[:, fold].sum(2) / count
        if by_groups:
            matrix = (off / math.sqrt(count))[:, complements(fold, n)].sub_(
                shift.unsqueeze(2) / math.sqrt(count)
            )
        else:
            of_shift = count * shift.unsqueeze(3) * shift.unsqueeze(2)
            sums = between.unsqueeze(1) - _squared(off[:, fold]) - of_shift
            matrix = sums / count
        out.append(_whiten(solve, matrix, by_groups).float())
    return out


def _whiten(solve: Solve, matrices: Tensor, by_groups: bool) -> Tensor:
    """Return the whitened scatter of centers (…, n, D) over the root of their number, or of Σ_b
    (…, D, D).

    `solve` multiplies by L⁻¹, Σ_w = L Lᵀ.
    """
    half = solve(matrices.mT if by_groups else matrices)
    if by_groups:
        return _squared(half)
    product = solve(half.mT)
    return (product + product.mT) / 2


def _squared(rows: Tensor) -> Tensor:
    """Return rowsᵀ rows (…, d, d) of rows (…, n, d)."""
    return rows.mT @ rows


def complements(members: Tensor, n: int) -> Tensor:
    """Return the numbers below n that are not in each set (sets, size), ascending (sets, n − size).

    The host does not wait for the result.
    """
    sets, size = members.shape
    places = torch.arange(n - size, device=members.device).expand(sets, -1)
    return places + torch.searchsorted(
        members - torch.arange(size, device=members.device), places.contiguous(), right=True
    )


def _by_size(matrices: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Split matrices (B · sets, D, D) into one tensor (B, size, D, D) for each size."""
    count = len(matrices) // sum(sizes)
    groups = matrices.split([count * size for size in sizes])
    return [group.unflatten(0, (count, size)) for group, size in zip(groups, sizes, strict=True)]


def _solvers(noises: Tensor, sizes: Sequence[int], by_products: bool) -> list[Solve]:
    """Return a multiplication by L⁻¹, noise = L Lᵀ, for each tensor of `_by_size`.

    Only the lower half of the noise is read, and it is overwritten.
    """
    if by_products:
        return [
            partial(torch.matmul, factors) for factors in _by_size(inverse_factor(noises), sizes)
        ]
    factors = torch.linalg.cholesky_ex(noises).L
    return [
        partial(torch.linalg.solve_triangular, factor, upper=False)
        for factor in _by_size(factors, sizes)
    ]
