"""Scatter between groups, whitened by the scatter within them: of several data, and of each without
its folds, in few steps."""

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
    """Matrices with the eigenvalues of Σ_w^{-1/2} Σ_b Σ_w^{-1/2}, δ on the diagonal of Σ_w.

    Of all groups (B, n, n), float64; then without each fold, stacked by size (B, folds, m, m),
    float32. Where there are more groups than dimensions, they are D×D.

    `inner` (B, n, q, D), float64, are the rows of each group seen from its center, the groups fold
    by fold; `off` (B, n, D) the centers seen from their mean, in the order that `members` counts:
    one tensor (folds, size) for each size of folds. `by_products`: multiply by inverse factors
    instead of solving, which pays where float64 products are fast.
    """
    n, q, d = inner.shape[1:]
    by_size = zip(inner.split([some.numel() for some in members], dim=1), members, strict=True)
    within_of = [_squared(rows.unflatten(1, some.shape).flatten(2, 3)) for rows, some in by_size]
    within = torch.stack([part.sum(1) for part in within_of]).sum(0)
    by_groups = n <= d
    between = torch.zeros(0) if by_groups else off.mT @ off
    # one factorization for the noise of all groups and without each fold: a few large matrices take
    # as long as one
    sizes = [1, *(len(some) for some in members)]
    noises = within.new_empty(len(inner) * sum(sizes), d, d)
    whole, *without = _by_size(noises, sizes)
    torch.mul(within.unsqueeze(1), 1 / (n * q), out=whole)
    for some, part, noise in zip(members, within_of, without, strict=True):
        share = 1 / ((n - some.shape[1]) * q)
        torch.sub((share * within).unsqueeze(1), part, alpha=share, out=noise)
    del within_of
    noises.diagonal(dim1=-2, dim2=-1).add_(delta)
    solvers = _solvers(noises, sizes, by_products)
    every = (off / math.sqrt(n) if by_groups else between / n).unsqueeze(1)
    out = [_whiten(solvers[0], every, by_groups).squeeze(1)]
    for some, solve in zip(members, solvers[1:], strict=True):
        left = n - some.shape[1]
        shift = -off[:, some].sum(2) / left
        if by_groups:
            rest = (off / math.sqrt(left))[:, others(some, n)].sub_(
                shift.unsqueeze(2) / math.sqrt(left)
            )
        else:
            rest = (
                between.unsqueeze(1)
                - _squared(off[:, some])
                - left * shift.unsqueeze(3) * shift.unsqueeze(2)
            )
            rest = rest / left
        out.append(_whiten(solve, rest, by_groups).float())
    return out


def _whiten(solve: Solve, what: Tensor, by_groups: bool) -> Tensor:
    """`solve` multiplies by L⁻¹, Σ_w = L Lᵀ; `what` are centers (…, n, D) over the root of their
    number, or Σ_b (…, D, D)."""
    half = solve(what.mT if by_groups else what)
    if by_groups:
        return _squared(half)
    both = solve(half.mT)
    return (both + both.mT) / 2


def _squared(rows: Tensor) -> Tensor:
    """rowsᵀ rows (…, d, d) of rows (…, n, d)."""
    return rows.mT @ rows


def others(members: Tensor, n: int) -> Tensor:
    """Return those of n that are not in each set (sets, size), ascending: (sets, n − size).

    The host does not wait for it.
    """
    sets, size = members.shape
    at = torch.arange(n - size, device=members.device).expand(sets, -1)
    return at + torch.searchsorted(
        members - torch.arange(size, device=members.device), at.contiguous(), right=True
    )


def _by_size(matrices: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Matrices (B · sets, D, D) as (B, size, D, D), one after the other, for so many of the sets
    each."""
    count = len(matrices) // sum(sizes)
    parts = matrices.split([count * size for size in sizes])
    return [part.unflatten(0, (count, size)) for part, size in zip(parts, sizes, strict=True)]


def _solvers(noises: Tensor, sizes: Sequence[int], by_products: bool) -> list[Solve]:
    """Multiplication by L⁻¹, noise = L Lᵀ, for each of `_by_size`; only the lower half of the noise
    is read, and overwritten."""
    if by_products:
        return [
            partial(torch.matmul, factors) for factors in _by_size(inverse_factor(noises), sizes)
        ]
    factors = torch.linalg.cholesky_ex(noises).L
    return [
        partial(torch.linalg.solve_triangular, part, upper=False)
        for part in _by_size(factors, sizes)
    ]
