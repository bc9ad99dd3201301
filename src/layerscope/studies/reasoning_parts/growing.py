"""Prompt entropies of all prefixes: rows centred on the prefix's own mean, then scaled to length 1.

Every new token moves the mean, and with it every row. Within a range of lengths (a, b] the rows are written as e^θ · ŷ, where ŷ
is scaled by its distance from one fixed point (the mean in the middle of the range) and θ, some thousandths, is how far the right
scale is from that. What does not depend on θ is exact: tokens are added to the eigenvectors of the first a rows, and the moving
mean is a change of rank two (`ranges`). What does is a Taylor series to second order (`second_order`). The first prefixes are
solved one by one, and so are two of every range: where the two ways differ by more than `CLOSE`, the range is cut in half.
Derivation: docs/decisions/prefix-entropies.md.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from layerscope.metrics.entropy import matrix_entropy
from layerscope.studies.reasoning_parts.ranges import Base, Range, make_base, make_range

CLOSE = 3e-7  # nats, at the end of a range, where the series is at its worst
_FIRST = 160  # prefixes up to here are solved one by one: they cost little
_GROWTH = 0.13  # a range is this share of its first length long
_SHORTEST = 12  # a range this short is solved one by one


def growing_entropies(states: Tensor) -> Tensor:
    """S_1 of the first n rows of `states` (N, D), centred on their mean and scaled to length 1, for n = 1 … N; NaN at n = 1."""
    x = _coordinates(states.double())
    total = len(x)
    means = x.cumsum(0) / torch.arange(1, total + 1, dtype=torch.float64, device=x.device)[:, None]
    out = torch.full((total,), torch.nan, dtype=torch.float64, device=x.device)
    first = min(total, _FIRST)
    _one_by_one(x, 0, first, out)
    edges = [first]
    while edges[-1] < total:
        step = max(16, round(_GROWTH * edges[-1]))
        edges.append(total if edges[-1] + 1.4 * step > total else edges[-1] + step)
    base: Base | None = None
    for i, (a, b) in enumerate(pairwise(edges)):
        end = edges[i + 2] if i + 2 < len(edges) else b
        base = base or make_base(x, means, a, b)
        after = make_base(x, means, b, end)
        _fill(x, means, base, after, out)
        base = after
    return out


def _fill(x: Tensor, means: Tensor, base: Base, after: Base | None, out: Tensor) -> None:
    """The entropies of one range; `after` is the base of the next one."""
    a, b = base.count, base.end
    if b - a <= _SHORTEST or base.degenerate:
        _one_by_one(x, a, b, out)
        return
    found: Range = make_range(x, means, base, after or make_base(x, means, b, b))
    if all(abs(float(found.entropy[n - a - 1] - _solved(x, n))) <= CLOSE for n in (b, a + max(1, (b - a) // 8))):
        out[a:b] = found.entropy
        return
    middle = (a + b) // 2
    _fill(x, means, make_base(x, means, a, middle), None, out)
    _fill(x, means, make_base(x, means, middle, b), after, out)


def _one_by_one(x: Tensor, a: int, b: int, out: Tensor) -> None:
    for n in range(a + 1, b + 1):
        out[n - 1] = _solved(x, n)


def _solved(x: Tensor, n: int) -> Tensor:
    return matrix_entropy(x[:n, :n], 1.0, "centered-unit")


def _coordinates(x: Tensor) -> Tensor:
    """The same rows in coordinates of their own, shifted to their mean: the first n rows need the first n coordinates only."""
    largest = int(torch.linalg.vector_norm(x, dim=-1).argmax())
    others = torch.cat([x[:largest], x[largest + 1 :]]) if len(x) > 1 else x
    shifted = x - others.mean(0)  # a common shift changes nothing; one huge token must not cost the others their digits
    return torch.linalg.qr(shifted.mT, mode="r").R.mT.contiguous()
