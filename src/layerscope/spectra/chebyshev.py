"""An entropy without eigenvalues: Σ λ log λ through a polynomial, which needs only matrix products.

t log t on [0, 1] is expanded in shifted Chebyshev polynomials T_k, and tr T_k(K / b) is all that is needed of a matrix, for b at
least its largest eigenvalue. Products of a few low polynomials (1 … s) with a few high ones (s, 2s, …) give the traces of all
degrees up to m: T_i T_j = (T_{i+j} + T_{|i−j|}) / 2, so m = 20 takes 6 products of matrices.

Each product has one factor that vanishes with K (T_k minus its value at 0): half-length floating-point numbers (TF32) round
it relative to K, not to 1, so they will do. The error is at most (b n / tr K) · Σ_{k>m} |c_k|, plus rounding.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from layerscope.spectra.precision import full_precision

LOW, HIGH = 4, 4  # low polynomials; high ones, at multiples of LOW
DEGREE = LOW * (HIGH + 1)
_CHUNK_BYTES = 6 * 2**30


@cache
def coefficients(degree: int) -> tuple[float, ...]:
    """Chebyshev coefficients c_0 … c_degree of t log t on [0, 1]."""
    # ½ (1 + x) log(½ (1 + x)) against T_k: closed forms; for k ≥ 2, (−1)^k / (k (k² − 1))
    first = (0.5 - math.log(2)) / 1, 0.75 - math.log(2)
    return (first[0], first[1], *((-1) ** k / (k * (k * k - 1)) for k in range(2, degree + 1)))[: degree + 1]


def tail(degree: int) -> float:
    """Σ_{k>degree} |c_k|, a bound on the error of the expansion anywhere on [0, 1]."""
    return 1 / (2 * degree * (degree + 1))


def entropy_bound(matrices: Tensor) -> Tensor:
    """What `approximate_entropy` may be wrong by (B,), in nats, rounding aside."""
    n, b, trace = matrices.shape[-1], _largest(matrices, matrices @ matrices), _trace(matrices)
    return tail(DEGREE) * n * b / trace


def approximate_entropy(matrices: Tensor) -> Tensor:
    """−Σ p log p, p = λ / Σλ, of positive semidefinite matrices (B, n, n), float64; NaN where the trace is zero."""
    n = matrices.shape[-1]
    step = max(1, _CHUNK_BYTES // (matrices.element_size() * n * n * (LOW + HIGH + 4)))
    return torch.cat([_chunk(part) for part in matrices.split(step)])


def _trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1, dtype=torch.float64)


def _largest(matrices: Tensor, squared: Tensor) -> Tensor:
    """A bound on the largest eigenvalue (B,): (tr K⁴)^¼ from K², a little widened for its rounding."""
    return 1.002 * torch.linalg.vector_norm(squared, dim=(-2, -1)).double().sqrt()


def _chunk(matrices: Tensor) -> Tensor:
    n = matrices.shape[-1]
    with full_precision(False):
        squared = matrices @ matrices
        b = _largest(matrices, squared)
        low, high = _polynomials(matrices, squared, torch.where(b > 0, b, 1.0).to(matrices.dtype)[:, None, None])
    traces = _traces(low, high, n)
    # rows of zeros (padding, a token left out) are no part of it: each would add the expansion's error at 0
    none = (matrices.diagonal(dim1=-2, dim2=-1) == 0).sum(-1, keepdim=True)
    signs = torch.tensor([(-1.0) ** k for k in range(DEGREE + 1)], dtype=torch.float64, device=matrices.device)
    weights = torch.tensor(coefficients(DEGREE), dtype=torch.float64, device=matrices.device)
    trace = _trace(matrices)
    value = torch.log(trace / b) - b / trace * ((traces - none * signs) * weights).sum(-1)
    return torch.where(trace > 0, value, torch.nan)


def _polynomials(matrices: Tensor, squared: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """T_1 … T_LOW (LOW, B, n, n) and T_LOW, T_2LOW, … (HIGH, B, n, n) of K / b, shifted to [0, 1]. `squared` is used up.

    Sums and differences of neighbours are carried along, so that each product is added in place: memory is what this waits for.
    """
    count, n = matrices.shape[:2]
    low, high = (matrices.new_empty(k, count, n, n) for k in (LOW, HIGH))
    one, two = low[0], low[1]
    rest = torch.mul(matrices, 2 / b)  # T_1 + 1: vanishes with K
    one.copy_(rest)
    one.diagonal(dim1=-2, dim2=-1).sub_(1.0)
    torch.mul(squared, 8 / b.square(), out=two)  # T_2 = 8 t² − 8 t + 1
    two.sub_(rest, alpha=4.0)
    two.diagonal(dim1=-2, dim2=-1).add_(1.0)
    both = torch.add(one, two, out=squared)  # T_k + T_{k−1}
    for k in range(2, LOW):  # T_{k+1} + T_k = 2 (T_1 + 1) T_k − (T_k + T_{k−1})
        both.baddbmm_(rest, low[k - 1], beta=-1.0, alpha=2.0)
        torch.sub(both, low[k - 1], out=low[k])
    high[0].copy_(low[-1])
    rest.copy_(low[-1]).diagonal(dim1=-2, dim2=-1).sub_(1.0)  # T_LOW − 1: vanishes with K, as LOW is even
    step = both.copy_(rest)  # T_ks − T_{(k−1)s}
    for k in range(1, HIGH):  # T_{(k+1)s} − T_ks = 2 (T_s − 1) T_ks + (T_ks − T_{(k−1)s})
        step.baddbmm_(rest, high[k - 1], beta=1.0, alpha=2.0)
        torch.add(high[k - 1], step, out=high[k])
    return low, high


def _traces(low: Tensor, high: Tensor, n: int) -> Tensor:
    """tr T_k (B, DEGREE + 1), float64."""
    single = low.diagonal(dim1=-2, dim2=-1).sum(-1, dtype=torch.float64).mT
    with full_precision():
        pairs = (low.flatten(2).transpose(0, 1) @ high.flatten(2).permute(1, 2, 0)).double()  # tr T_i T_j: both are symmetric
    known = [torch.full_like(single[:, 0], n), *single.unbind(-1)]
    for j in range(HIGH):
        at = LOW * (j + 1)
        known += [2 * pairs[:, i - 1, j] - known[at - i] for i in range(1, LOW + 1)]
    return torch.stack(known, dim=-1)
