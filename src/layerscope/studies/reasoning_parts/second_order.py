"""The quadratic part of the series in θ: Σ_k w_k tr(Θ H_k Θ H_k), with H_k = K (K + t_k)⁻¹.

In eigenvectors it is Σ_ab q(λ_a, λ_b) E_ab², E = Yᵀ Θ Y. Along a range θ is a path that a few directions hold almost whole; the
form is computed for those at both ends of the range and goes over from one to the other in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from layerscope.studies.reasoning_parts.logarithms import entropy_sum

if TYPE_CHECKING:
    from layerscope.studies.reasoning_parts.ranges import Base

_DIRECTIONS = 6
_TRACE = 0.995  # of the eigenvalues' sum is kept: what is left out moves the form by about that share


@dataclass(frozen=True)
class Bend:
    """The quadratic term of each prefix, and the share of θ² that the directions hold."""

    values: Tensor
    held: float


def bend(theta: Tensor, trace: Tensor, base: Base, after: Base, scale: float) -> Bend:
    """2 · scale · Σ_k w_k tr(Θ H_k Θ H_k) for every row of `theta` (s, b).

    It grows in proportion to the matrix, so each base gives it per unit of trace.
    """
    spread, vectors = torch.linalg.eigh(theta @ theta.mT)
    path = vectors[:, -_DIRECTIONS:]  # (s, r), orthonormal: θ ≈ path · directions
    directions = path.mT @ theta
    forms = [_form(directions[:, : part.count], part, scale) for part in (base, after)]
    here = path * torch.linalg.vector_norm(directions, dim=1)
    energy = theta.square().sum(1)
    held = here.square().sum(1) / energy.clamp(min=1e-300)
    share = torch.arange(1, len(theta) + 1, dtype=torch.float64, device=theta.device) / len(theta)
    at = [((path @ form) * path).sum(1) for form in forms]
    values = ((1 - share) * at[0] + share * at[1]) / held.clamp(min=0.5)
    return Bend(2 * scale * trace * values, float(spread[-_DIRECTIONS:].sum() / spread.clamp(min=0).sum().clamp(min=1e-300)))


def _form(directions: Tensor, base: Base, scale: float) -> Tensor:
    """The form (r, r) between directions, over the rows of a base."""
    every = base.eigenvalues
    count = int((every.flip(0).cumsum(0) < _TRACE * every.sum()).sum()) + 1
    rows = base.rows[: base.count, -count:].float()
    kernel = _kernel(every, scale)
    weights = kernel[-count:, -count:].float().flatten()
    scaled = [(rows * direction.float()[:, None]).mT @ rows for direction in directions]
    flat = torch.stack(scaled).flatten(1)
    return ((flat * weights) @ flat.mT).double() / every.sum()


def _kernel(lam: Tensor, scale: float) -> Tensor:
    """q(λ_a, λ_b) = Σ_k w_k / ((λ_a + t_k) (λ_b + t_k))."""
    fit = entropy_sum()
    poles = torch.as_tensor(fit.poles, dtype=torch.float64, device=lam.device) * scale
    weights = torch.as_tensor(fit.weights, dtype=torch.float64, device=lam.device)
    inverse = 1 / (lam[:, None] + poles)
    return (inverse * weights) @ inverse.mT
