"""Prompt entropies of every prefix of a prompt, followed from one prefix to the next instead of solved one by one.

Three ways, each exact or checked against the direct solution; `entropies_of_prefixes` picks one:

- Rows that do not change as the prefix grows (`prefix_entropies`). Their Gram matrices are the leading blocks of one matrix G.
  With K = G / tr G, the entropy of the first n rows needs Σ λ log λ of a leading block. On [0, 1], x log x ≈ c x + Σ_k w_k
  log(1 + x / t_k) (`entropy_sum`), so that sum is a sum of log det(K_n + t_k) over 22 fixed t_k, and one Cholesky factor of
  K + t_k has the determinant of every n on its diagonal. All N entropies cost 22 factorizations, about 7 N³, instead of N sets of
  eigenvalues, about N⁴ / 3.
- Rows centered on the prefix's own mean, then scaled to length 1 (`growing_entropies`). Every new token moves the mean, and with
  it every row. Within a range of lengths (a, b] the rows are written as e^θ · ŷ, where ŷ is scaled by its distance from one fixed
  point (the mean in the middle of the range) and θ, some thousandths, is the logarithm of the remaining factor. What does not
  depend on θ is exact: tokens are added to the eigenvectors of the first a rows, and the moving mean is a change of rank two.
  What does is a Taylor series to second order. The first prefixes are solved one by one, and so are two of every range: where the
  two ways differ by more than `CLOSE`, the range is cut in half. Derivation: docs/decisions/prefix-entropies.md.
- A few prefixes are computed anew, each by itself (`anew`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from layerscope.metrics.entropy import matrix_entropy
from layerscope.metrics.options import RowPreparation, prepare_rows

_FEWEST = 48  # fewer prefixes than this are solved one by one as fast

# The fit of x log x: log t_k = highest − step · k · (1 + grading · k), wider where less accuracy is needed
_HIGHEST, _STEP, _GRADING = 2.0, 0.85, 0.02
_FLOOR = 1e-4  # the fit's error is a share of x + floor: eigenvalues near zero are many
# Blocks that hold less than this share of the trace are done again on a scale of their own, far above the fit's floor.
_SMALL = 1 / 64

CLOSE = 3e-7  # nats, at the end of a range, where the series is at its worst
_FIRST = 160  # prefixes up to here are solved one by one: they cost little
_GROWTH = 0.13  # the length of a range as a share of its first length
_SHORTEST = 12  # a range this short is solved one by one
_NEGLIGIBLE = 1e-7  # weight of a pole below which leverages, which are between 0 and 1, do not count
_DIRECTIONS = 6  # of θ along a range: a few hold almost all of it
_TRACE = 0.995  # of the eigenvalues' sum is kept: what is left out moves the quadratic form by about that share


def entropies_of_prefixes(states: Tensor, lengths: Sequence[int], center: str = "prefix") -> Tensor:
    """S_1 of the first n rows of `states` (N, D), centered and scaled to length 1, for each n of `lengths`; NaN where undefined.

    Rows centered on the whole `prompt`'s mean do not change as the prefix grows: `prefix_entropies` gives all prefixes at once.
    Centered on the `prefix`'s own mean (the prompt entropy of a text cut to n tokens), all rows change with every token:
    `growing_entropies` follows them. A few prefixes are computed one by one.
    """
    x, fixed = states.double(), center == "prompt"
    if fixed:
        x = prepare_rows(x, "centered-unit")
    if len(lengths) < _FEWEST:
        return solve_each_prefix(x, lengths, "raw" if fixed else "centered-unit")
    every = prefix_entropies(x @ x.mT) if fixed else growing_entropies(x)
    return every[torch.as_tensor(list(lengths), dtype=torch.long) - 1]


def solve_each_prefix(states: Tensor, lengths: Sequence[int], rows: RowPreparation) -> Tensor:
    """The direct way: each prefix's rows prepared, its smaller Gram matrix formed and its eigenvalues solved from scratch."""
    values = [matrix_entropy(states[:n], 1.0, rows) for n in lengths]
    return torch.stack(values) if values else torch.empty(0, dtype=torch.float64)


@dataclass(frozen=True)
class LogSum:
    """Poles t, weights w, the linear term c, and the largest error as a share of x + floor."""

    poles: np.ndarray
    weights: np.ndarray
    linear: float
    error: float
    floor: float = _FLOOR

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """The approximation of x log x."""
        return self.linear * x + np.log1p(x[..., None] / self.poles) @ self.weights


@cache
def entropy_sum(terms: int = 22) -> LogSum:
    """The sum for x log x.

    >>> fit = entropy_sum()
    >>> fit.error < 2e-7
    True
    """
    k = np.arange(terms)
    poles = np.exp(_HIGHEST - _STEP * k * (1 + _GRADING * k))
    x = np.exp(np.concatenate([np.linspace(-40, -3, 1500), np.linspace(-3, 0, 1000)]))
    share = 1 / (x + _FLOOR)
    wanted = x * np.log(x)
    columns = np.concatenate([x[:, None], np.log1p(x[:, None] / poles)], axis=1)
    scale = np.concatenate([[1.0], poles])
    solved = np.linalg.lstsq(columns * scale * share[:, None], wanted * share, rcond=1e-15)[0] * scale
    error = float(np.abs((columns @ solved - wanted) * share).max())
    return LogSum(poles, solved[1:], float(solved[0]), error)


def prefix_entropies(gram: Tensor) -> Tensor:
    """S_1 of the leading n×n blocks of a Gram matrix (N, N), for n = 1 … N, float64; NaN where a block is zero.

    >>> [round(x, 6) for x in prefix_entropies(torch.eye(4)).exp().tolist()]
    [1.0, 2.0, 3.0, 4.0]
    """
    gram = gram.double()
    trace = gram.diagonal().cumsum(0)
    if gram.shape[0] == 0 or trace[-1] <= 0:
        return torch.full_like(trace, torch.nan)
    scaled, share = gram / trace[-1], trace / trace[-1]
    entropy = share.log() - _sum_x_log_x(scaled, share) / share
    small = int((share < _SMALL).sum())
    if 0 < small < len(gram):
        entropy[:small] = prefix_entropies(gram[:small, :small])
    return entropy.clamp_(min=0.0)


def _sum_x_log_x(scaled: Tensor, share: Tensor) -> Tensor:
    """Σ λ log λ of every leading block of a matrix of trace 1."""
    fit = entropy_sum()
    total = fit.linear * share
    diagonal = scaled.diagonal().clone()
    # what rounding in the matrix can add to it: a smaller shift could leave it indefinite, and weighs nothing
    least = 4 * torch.finfo(torch.float64).eps * len(scaled) * float(diagonal.max())
    shifted = scaled.clone()
    for pole, weight in zip(fit.poles.tolist(), fit.weights.tolist(), strict=True):
        pole = max(pole, least)
        shifted.diagonal().copy_(diagonal + pole)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if int(failed):  # not positive definite, so no Gram matrix: say so rather than give a number
            raise ValueError("the matrix has negative eigenvalues beyond rounding: it is not a Gram matrix")
        total += weight * (2 * factor.diagonal().log() - torch.log(torch.tensor(pole, dtype=torch.float64))).cumsum(0)
    return total


def growing_entropies(states: Tensor) -> Tensor:
    """S_1 of the first n rows of `states` (N, D), centered on their mean and scaled to length 1, for n = 1 … N; NaN at n = 1."""
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
    entropies = _range_entropies(x, means, base, after or make_base(x, means, b, b))
    if all(abs(float(entropies[n - a - 1] - _solved(x, n))) <= CLOSE for n in (b, a + max(1, (b - a) // 8))):
        out[a:b] = entropies
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


@dataclass(frozen=True)
class Base:
    """The first `count` rows, ready for the range (count, end]: rows ŷ of all tokens up to `end`, in eigenvectors.

    ŷ is centered on the mean of the first `count` rows, and scaled by the distance from the mean in the middle of the range.
    """

    count: int
    end: int
    center: Tensor
    inverse: Tensor  # ρ: 1 / distance from the middle's mean
    eigenvalues: Tensor  # of Σ ŷ ŷᵀ over the first `count` rows
    vectors: Tensor
    rows: Tensor  # ŷ in these eigenvectors, (end, width)
    degenerate: bool  # some row lies on the fixed point: it has no direction


def make_base(x: Tensor, means: Tensor, a: int, b: int) -> Base:
    """Solve the first `a` rows for the range (a, b]."""
    width = min(b, x.shape[1])
    center = means[a - 1, :width]
    length = torch.linalg.vector_norm(x[:b, :width] - means[(a + b) // 2 - 1, :width], dim=-1)
    degenerate = bool(length.min() <= 1e-7 * length.median())
    inverse = 1 / length.clamp(min=1e-300)
    scaled = (x[:b, :width] - center) * inverse[:, None]
    eigenvalues, vectors = torch.linalg.eigh(scaled[:a].mT @ scaled[:a])
    return Base(a, b, center, inverse, eigenvalues.clamp(min=0), vectors, scaled @ vectors, degenerate)


def _range_entropies(x: Tensor, means: Tensor, base: Base, after: Base) -> Tensor:
    """Entropies of the prefixes of lengths count + 1 … end of a range. `after` has the eigenvectors of its last prefix."""
    a, b = base.count, base.end
    rows, rho = base.rows, base.inverse
    width = rows.shape[1]
    moved = (means[a:b, :width] - base.center) @ base.vectors  # δ_n: how far the prefix's mean is from the base's
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
    curve = _bend(theta, trace, base, after, scale)
    fit = entropy_sum()
    total = (fit.linear + math.log(scale)) * trace + scale * (value + 2 * ((theta + theta.square()) * slope).sum(1)) - curve
    return trace.log() - total / trace


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


def _bend(theta: Tensor, trace: Tensor, base: Base, after: Base, scale: float) -> Tensor:
    """The quadratic part of the series, 2 · scale · Σ_k w_k tr(Θ H_k Θ H_k) with H_k = K (K + t_k)⁻¹, for every row of `theta`.

    In eigenvectors it is Σ_ab q(λ_a, λ_b) E_ab², E = Yᵀ Θ Y. Along a range θ is a path that a few directions hold almost
    whole; the form is computed for those at both ends of the range and interpolated in between. It grows in proportion to the
    matrix, so each base gives it per unit of trace.
    """
    _, vectors = torch.linalg.eigh(theta @ theta.mT)
    path = vectors[:, -_DIRECTIONS:]  # (s, r), orthonormal: θ ≈ path · directions
    directions = path.mT @ theta
    forms = [_form(directions[:, : part.count], part, scale) for part in (base, after)]
    here = path * torch.linalg.vector_norm(directions, dim=1)
    energy = theta.square().sum(1)
    covered = here.square().sum(1) / energy.clamp(min=1e-300)
    share = torch.arange(1, len(theta) + 1, dtype=torch.float64, device=theta.device) / len(theta)
    at = [((path @ form) * path).sum(1) for form in forms]
    values = ((1 - share) * at[0] + share * at[1]) / covered.clamp(min=0.5)
    return 2 * scale * trace * values


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
