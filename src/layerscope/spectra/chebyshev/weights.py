"""What the traces of the basis are multiplied by to give Σ t log t, and how wrong that can be.

The weights are a least-squares fit of t log t on [0, 1]. What counts of its error e is Σ e(t_i) / Σ t_i, and most eigenvalues are
small where their mean, the share s of their bound, is small: so there is a fit for every quarter octave of s, closer at small t
the smaller s is, and between them weights are interpolated. How much closer was chosen on spectra of language models' states,
among fits whose guaranteed error is at most 1.2e-3 / s.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from layerscope.spectra.chebyshev.basis import COUNT, PAIRS, fill

_PER_OCTAVE = 4
_OCTAVES = 13
_POINTS = 3000


class Table(NamedTuple):
    """For shares 1, 2^-¼, … (S,): weights of the first trace and of all PAIRS (S, …), sup |e| (S,) and sup |e| / (t + s) (S,)."""

    shares: Tensor
    weights: Tensor
    largest: Tensor
    relative: Tensor


def features(t: Tensor) -> Tensor:
    """The basis's first polynomial and its products in pairs at points t (P,), float64: (P, 1 + len(PAIRS))."""
    arrays = t.new_zeros(COUNT, len(t), 1, 1)
    arrays[0, :, 0, 0], arrays[1, :, 0, 0] = t, t.square()
    fill(arrays, torch.ones_like(t))
    values = arrays.flatten(1)
    return torch.stack([values[0], *(values[i] * values[j] for i, j in PAIRS)], dim=-1)


@cache
def table() -> Table:
    """The fits: a tenth of a second, once."""
    angles = (torch.arange(_POINTS, dtype=torch.float64) + 0.5) * (torch.pi / _POINTS)
    t = (1 - angles.cos()) / 2
    given, wanted = features(t), t * t.log()
    shares = 2.0 ** -(torch.arange(_PER_OCTAVE * _OCTAVES + 1, dtype=torch.float64) / _PER_OCTAVE)
    found, largest, relative = [], [], []
    for share in shares:
        close = ((t + share).pow(-0.5) * (t + 4 * share.square()).pow(-0.75)).unsqueeze(-1)
        # products of the basis depend on each other: of all weights that fit, the smallest
        fit = torch.linalg.lstsq(close * given, close * wanted.unsqueeze(-1), rcond=1e-12, driver="gelsd")
        error = (given @ fit.solution).squeeze(-1) - wanted
        found.append(fit.solution.squeeze(-1))
        largest.append(error.abs().max())
        relative.append((error.abs() / (t + share)).max())
    return Table(shares, torch.stack(found), torch.stack(largest), torch.stack(relative))


def _between(values: Tensor, share: Tensor) -> Tensor:
    at = (-_PER_OCTAVE * share.log2()).clamp(0, len(values) - 1)
    below = at.nan_to_num().floor().long().clamp(max=len(values) - 2)
    part = (at - below).view(-1, *[1] * (values.ndim - 1))
    return torch.lerp(values[below], values[below + 1], part)


@cache
def _weights_on(device: torch.device) -> Tensor:
    return table().weights.to(device)


def weights(share: Tensor) -> Tensor:
    """Weights (B, 1 + len(PAIRS)) for matrices whose mean eigenvalue is `share` (B,) of the bound; NaN where it is."""
    return _between(_weights_on(share.device), share)


def bound(share: Tensor) -> Tensor:
    """What the entropy may be wrong by (B,), in nats: sup |e| / s, or sup (|e| / (t + s)) · 2, whichever is less."""
    known = table()
    s = share.cpu().unsqueeze(-1)
    every = torch.minimum(known.largest / s, known.relative * (1 + known.shares / s))
    at = (-_PER_OCTAVE * share.cpu().log2()).clamp(0, len(known.shares) - 1)
    near = 1 - (at.unsqueeze(-1) - torch.arange(len(known.shares))).abs()  # the same interpolation
    return (every * near.clamp(min=0)).sum(-1).to(share.device)
