"""log det(1 + K/t) of matrices at many t, and the same without some rows, through inverse factors
of K + t.

Products of matrices are what a GPU is fast at: (K + t)⁻¹ = L⁻ᵀ L⁻¹ of all matrices at all t.
Without rows f, Jacobi's identity for minors says log det(1 + K_f/t) = log det(1 + K/t) + log det (t
(K + t)⁻¹)[f, f].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from layerscope_gpu.factors import inverse_factor, log_determinant

_SHARE_OF_MEMORY = 0.15  # of what is free, for factors
_MOST_BYTES = 3 * 2**30  # of them: more would keep a GPU no busier


def log_determinants(grams: Tensor, members: Sequence[Tensor], at: Tensor, free: int) -> Tensor:
    """log det(1 + K/t) of matrices K (B, n, n), float64, at t (B, m): of each as it is, then
    without each set: (B, 1 + sets, m).

    `members` says which rows: one tensor (sets, size) for each size, every row in one set at most.
    `free` is the memory, in bytes, that may be used in part.
    """
    n, sets = grams.shape[-1], sum(len(some) for some in members)
    if members:
        order = torch.cat([some.flatten() for some in members])
        if len(order) < n:  # rows in no set come last
            outside = torch.ones(n, dtype=torch.bool, device=order.device)
            outside[order] = False
            order = torch.cat([order, outside.nonzero()[:, 0]])
        grams = grams[:, order.unsqueeze(-1), order]  # the rows of a set lie together
    every, which = (
        at.flatten(),
        torch.arange(len(grams), device=at.device).repeat_interleave(at.shape[1]),
    )
    found = at.new_empty(len(every), 1 + sets)
    at_once = max(
        1, min(_MOST_BYTES, int(_SHARE_OF_MEMORY * free)) // (24 * n**2)
    )  # with what computing them needs
    for start in range(0, len(every), at_once):
        t = every[start : start + at_once]
        shifted = grams[which[start : start + at_once]]
        shifted.diagonal(dim1=-2, dim2=-1).add_(t.unsqueeze(-1))
        factors = inverse_factor(shifted)
        whole = (log_determinant(factors) - n * t.log()).unsqueeze(-1)
        parts = [whole, *(whole + part for part in _block_log_dets(factors, members, t))]
        found[start : start + at_once] = torch.cat(parts, dim=-1)
    return found.view(*at.shape, 1 + sets).mT


def _block_log_dets(factors: Tensor, members: Sequence[Tensor], t: Tensor) -> Iterator[Tensor]:
    """log det (t (K + t)⁻¹)[f, f] (nodes, sets) from L⁻¹, whose columns of a set lie together;
    above a set they are zero."""
    first = 0
    for some in members:
        count, size = some.shape
        if size == 1:
            yield (factors[:, :, first : first + count].square().sum(1) * t.unsqueeze(-1)).log()
            first += count
            continue
        blocks = factors.new_empty(len(factors), count, size, size)
        for i in range(
            count
        ):  # one by one: their columns cannot be put side by side without a copy
            part = factors[:, first:, first : first + size]
            torch.matmul(part.mT, part, out=blocks[:, i])
            first += size
        blocks.mul_(t[:, None, None, None])
        yield log_determinant(inverse_factor(blocks.flatten(0, 1))).view(-1, count)
