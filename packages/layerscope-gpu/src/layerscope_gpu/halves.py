"""Products of matrices half of which is known beforehand: symmetric results and triangular factors, on a GPU in four parts.

A library's product computes both halves. In parts of whole tiles, five eighths of the arithmetic are left.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, bmm

_PARTS, _TILE = 4, 64
_FEWEST = 512  # of a side: a part of a smaller one would not keep a GPU busy


def symmetric_product(rows: Tensor, lower: bool = False) -> Tensor:
    """rowsᵀ rows (…, d, d) of rows (…, n, d). With `lower`, what lies above the diagonal may be anything.

    >>> import torch
    >>> symmetric_product(torch.tensor([[1.0, 2.0], [0.0, 1.0]])).tolist()
    [[1.0, 2.0], [2.0, 5.0]]
    """
    d = rows.shape[-1]
    if not _pays(rows, d):
        return rows.mT @ rows
    flat = rows.reshape(-1, *rows.shape[-2:])
    out = rows.new_empty(len(flat), d, d)
    for start, stop in _parts(d):
        bmm(flat[..., start:stop].mT, flat[..., :stop], out=out[:, start:stop, :stop])
        if start and not lower:
            out[:, :start, start:stop] = out[:, start:stop, :start].mT
    return out.view(*rows.shape[:-2], d, d)


def lower_product(factors: Tensor, others: Tensor) -> Tensor:
    """factors @ others for lower triangular factors (…, d, d) and as many matrices (…, d, n).

    >>> import torch
    >>> lower_product(torch.tensor([[1.0, 0.0], [2.0, 1.0]]), torch.tensor([[3.0], [4.0]])).tolist()
    [[3.0], [10.0]]
    """
    d, n = others.shape[-2:]
    if not _pays(factors, d):
        return factors @ others
    flat, given = (each.reshape(-1, *each.shape[-2:]) for each in (factors, others))
    out = others.new_empty(len(given), d, n)
    for start, stop in _parts(d):
        bmm(flat[:, start:stop, :stop], given[:, :stop], out=out[:, start:stop])
    return out.view(others.shape)


def _pays(matrices: Tensor, d: int) -> bool:
    return matrices.is_cuda and d >= _FEWEST


def _parts(d: int) -> list[tuple[int, int]]:
    """Where a side of d is cut."""
    size = -(-d // (_PARTS * _TILE)) * _TILE
    return list(pairwise([*range(0, d, size), d]))
