"""log det(1 + K/t) of matrices at many t, and the same without some rows, through inverse factors
of K + t.

This uses products of matrices, at which a GPU is fast: (K + t)⁻¹ = L⁻ᵀ L⁻¹ of all matrices at all
t. Without rows f, Jacobi's identity for minors says log det(1 + K_f/t) = log det(1 + K/t) +
log det (t (K + t)⁻¹)[f, f].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from layerscope_gpu.factors import inverse_factor, log_determinant

_SHARE_OF_MEMORY = 0.15  # of the free memory, for factors
_MOST_BYTES = 3 * 2**30  # of factors: more at once are no faster


def log_determinants(grams: Tensor, members: Sequence[Tensor], at: Tensor, free: int) -> Tensor:
    """Return log det(1 + K/t) (B, 1 + sets, m) of matrices K (B, n, n), float64, at t (B, m).

    The first is that of all rows, the others leave out each set of rows. `members` lists the sets:
    one tensor (sets, size) for each size, every row in one set at most. `free` is the free memory
    in bytes, of which a share is used.
    """
    n = grams.shape[-1]
    sets = sum(len(rows) for rows in members)
    if members:
        order = torch.cat([rows.flatten() for rows in members])
        if len(order) < n:  # rows in no set come last
            outside = torch.ones(n, dtype=torch.bool, device=order.device)
            outside[order] = False
            order = torch.cat([order, outside.nonzero()[:, 0]])
        grams = grams[:, order.unsqueeze(-1), order]  # the rows of a set lie together
    shifts = at.flatten()
    matrix_of = torch.arange(len(grams), device=at.device).repeat_interleave(at.shape[1])
    out = at.new_empty(len(shifts), 1 + sets)
    # 24 bytes an entry: the factor and what computing it needs
    at_once = max(1, min(_MOST_BYTES, int(_SHARE_OF_MEMORY * free)) // (24 * n**2))
    for start in range(0, len(shifts), at_once):
        t = shifts[start : start + at_once]
        shifted = grams[matrix_of[start : start + at_once]]
        shifted.diagonal(dim1=-2, dim2=-1).add_(t.unsqueeze(-1))
        factors = inverse_factor(shifted)
        whole = (log_determinant(factors) - n * t.log()).unsqueeze(-1)
        terms = [whole, *(whole + term for term in _block_log_dets(factors, members, t))]
        out[start : start + at_once] = torch.cat(terms, dim=-1)
    return out.view(*at.shape, 1 + sets).mT


def _block_log_dets(factors: Tensor, members: Sequence[Tensor], t: Tensor) -> Iterator[Tensor]:
    """Yield log det (t (K + t)⁻¹)[f, f] (nodes, sets) from L⁻¹, in which the columns of a set are
    neighbors, and zero above its rows."""
    start = 0
    for rows in members:
        count, size = rows.shape
        if size == 1:
            yield (factors[:, :, start : start + count].square().sum(1) * t.unsqueeze(-1)).log()
            start += count
            continue
        blocks = factors.new_empty(len(factors), count, size, size)
        for i in range(count):  # a batch of overlapping columns would need a copy
            columns = factors[:, start:, start : start + size]
            torch.matmul(columns.mT, columns, out=blocks[:, i])
            start += size
        blocks.mul_(t[:, None, None, None])
        yield log_determinant(inverse_factor(blocks.flatten(0, 1))).view(-1, count)
