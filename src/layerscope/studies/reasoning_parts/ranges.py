"""The entropies of the prefixes of one range of lengths, from the eigenvectors of its first rows. Notation as in `growing`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from layerscope.studies.reasoning_parts.logarithms import entropy_sum
from layerscope.studies.reasoning_parts.second_order import Bend, bend

_NEGLIGIBLE = 1e-7  # weight of a pole below which leverages, which are between 0 and 1, do not count


@dataclass(frozen=True)
class Base:
    """The first `count` rows, ready for the range (count, end]: rows ŷ of all tokens up to `end`, in eigenvectors.

    ŷ is centred on the mean of the first `count` rows, and scaled by the distance from the mean in the middle of the range.
    """

    count: int
    end: int
    centre: Tensor
    inverse: Tensor  # ρ: 1 / distance from the middle's mean
    eigenvalues: Tensor  # of Σ ŷ ŷᵀ over the first `count` rows
    vectors: Tensor
    rows: Tensor  # ŷ in these eigenvectors, (end, width)
    degenerate: bool  # some row lies on the fixed point: it has no direction


@dataclass(frozen=True)
class Range:
    """Entropies of the prefixes of lengths count + 1 … end."""

    entropy: Tensor


def make_base(x: Tensor, means: Tensor, a: int, b: int) -> Base:
    """Solve the first `a` rows for the range (a, b]."""
    width = min(b, x.shape[1])
    centre = means[a - 1, :width]
    length = torch.linalg.vector_norm(x[:b, :width] - means[(a + b) // 2 - 1, :width], dim=-1)
    degenerate = bool(length.min() <= 1e-7 * length.median())
    inverse = 1 / length.clamp(min=1e-300)
    scaled = (x[:b, :width] - centre) * inverse[:, None]
    eigenvalues, vectors = torch.linalg.eigh(scaled[:a].mT @ scaled[:a])
    return Base(a, b, centre, inverse, eigenvalues.clamp(min=0), vectors, scaled @ vectors, degenerate)


def make_range(x: Tensor, means: Tensor, base: Base, after: Base) -> Range:
    """All prefixes of a range. `after` has the eigenvectors of its last prefix."""
    a, b = base.count, base.end
    rows, rho = base.rows, base.inverse
    width = rows.shape[1]
    moved = (means[a:b, :width] - base.centre) @ base.vectors  # δ_n: how far the prefix's mean is from the base's
    square = moved.square().sum(1)
    lengths = torch.arange(a + 1, b + 1, dtype=torch.float64, device=x.device)
    alive = torch.arange(1, b + 1, device=x.device) <= lengths[:, None]
    theta = -0.5 * torch.log(rows.square().sum(1) - 2 * (moved @ rows.mT) * rho + square[:, None] * rho.square())
    theta = torch.where(alive, theta, 0.0)
    shared = theta.sum(1) / lengths  # a scale common to all rows changes no entropy
    theta = torch.where(alive, theta - shared[:, None], 0.0)
    trace = lengths * torch.exp(-2 * shared)
    scale = 1.2 * b  # above the trace, so that every eigenvalue is within the fit's interval
    value, slope = _zeroth(base, lengths, alive, scale)
    curve: Bend = bend(theta, trace, base, after, scale)
    fit = entropy_sum()
    total = (
        (fit.linear + math.log(scale)) * trace + scale * (value + 2 * ((theta + theta.square()) * slope).sum(1)) - curve.values
    )
    return Range(trace.log() - total / trace)


def _zeroth(base: Base, lengths: Tensor, alive: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """At θ = 0: the weighted log-determinants of each prefix (s,), and of each row its leverage h (s, b), weighted likewise.

    Determinants are exact to rounding. Leverages are multiplied by θ, so that float32 is enough for what changes along the range.
    """
    a, rows, lam = base.count, base.rows, base.eigenvalues
    both = torch.stack([base.inverse, 1 / base.inverse], dim=1)  # ρ and η = 1 / ρ of every row
    new, size = rows[a:], len(lengths)
    eye = torch.eye(size, dtype=torch.float64, device=rows.device)
    sums = rows[:a].mT @ both[:a]  # Σ ρ ŷ and Σ η ŷ over the first rows
    total = both[:a, 0].square().sum()
    squares, rough = rows.square(), rows.float()
    value = torch.zeros(size, dtype=torch.float64, device=rows.device)
    fixed = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    falls = torch.zeros(size, len(rows), dtype=torch.float32, device=rows.device)
    turns = torch.zeros_like(falls)
    fit = entropy_sum()
    for pole, weight in zip(fit.poles.tolist(), fit.weights.tolist(), strict=True):
        t = pole * scale
        inverse = 1 / (lam + t)
        weighed = new * inverse
        factor = torch.linalg.cholesky(weighed @ new.mT + eye)
        pivot = factor.diagonal()
        lower = torch.linalg.solve_triangular(factor, eye, upper=False)
        earlier = lower @ (weighed @ sums) - lower.tril(-1) @ both[a:]
        gain = both[a:] / pivot[:, None] - earlier
        # Σ ρ ŷ · (A_n + t)⁻¹ Σ ρ ŷ and its kin grow by ρ² − gain² with each token
        start = sums.mT @ (inverse[:, None] * sums)
        u11 = (total - start[0, 0] + gain[:, 0].square().cumsum(0)) / t
        u12 = (start[0, 1] + (1 - gain.prod(1)).cumsum(0)) / lengths
        left = t * (start[1, 1] + (both[a:, 1].square() - gain[:, 1].square()).cumsum(0)) / lengths.square()  # |δ|² − κᵀRκ
        determinant = (1 - u12).square() + u11 * left
        value += weight * (torch.log1p(lam / t).sum() + 2 * pivot.log().cumsum(0) + determinant.log())
        if abs(weight) < _NEGLIGIBLE:
            continue
        fixed += weight * (squares @ inverse)
        steps = lower.float() @ (weighed.float() @ rough.mT)
        falls.addcmul_(steps, steps, value=weight)
        # the moving mean: K − ρκᵀ − κρᵀ + |δ|² ρρᵀ, by Woodbury's identity
        begin = rows @ (inverse[:, None] * sums)
        r_rho = ((both[:, 0] - begin[:, 0]) / t).float() - (steps * (gain[:, :1] / t).float()).cumsum(0)
        r_kappa = (begin[:, 1].float() + (steps * gain[:, 1:].float()).cumsum(0)) / lengths[:, None].float()
        share = weight * t / determinant
        turns.addcmul_(r_rho, r_rho * (share * left)[:, None].float() + r_kappa * (2 * share * (u12 - 1))[:, None].float())
        turns.addcmul_(r_kappa, r_kappa * (share * u11)[:, None].float(), value=-1)
    return value, torch.where(alive, fixed + (turns - falls.cumsum(0)).double(), 0.0)
