"""−Σ p log p of positive semidefinite matrices from the traces of polynomials: products of matrices, no eigenvalues.

Written for GPUs, where it waits for memory: float32 matrices are scaled and become float16 there (as many digits as TF32, half
the bytes), and what is summed is summed in float32. A CPU computes in the numbers it is given.
"""

from __future__ import annotations

import torch
from torch import Tensor

from layerscope.spectra.chebyshev.basis import COUNT, fill, product
from layerscope.spectra.chebyshev.kernels import narrow, pair_sums
from layerscope.spectra.chebyshev.weights import bound, weights
from layerscope.spectra.precision import full_precision, half_products

_CHUNK_BYTES = 2 * 2**30
_WIDENED = 1.002  # what is said of the largest eigenvalue, for the rounding of what it is said from


def entropy_bound(matrices: Tensor) -> Tensor:
    """What `approximate_entropy` may be wrong by (B,), in nats: at most 1.2e-3 · b n / tr K, with b ≥ λ_max.

    Rounding comes on top, but is little: in float16 at most 2e-4 nats or, where one direction holds most of the trace, 6 % of
    this bound was seen, and the two together stayed within the bound. In float32 it is 1e-5.
    """
    diagonal = _diagonal(matrices)
    b = _largest(matrices @ matrices, diagonal)
    return bound(_share(diagonal, b))


def approximate_entropy(matrices: Tensor, half: bool | None = None) -> Tensor:
    """−Σ p log p, p = λ / Σλ, of positive semidefinite matrices (B, n, n), float64; NaN where the trace is zero.

    `half` says whether to compute in float16, which is what float32 matrices on a GPU get unless told otherwise.
    """
    if half is None:
        half = matrices.is_cuda and matrices.dtype == torch.float32
    if not len(matrices):
        return matrices.new_empty(0, dtype=torch.float64)
    n = matrices.shape[-1] + -matrices.shape[-1] % 8 if half else matrices.shape[-1]
    step = max(1, _CHUNK_BYTES // ((2 if half else matrices.element_size()) * n * n * COUNT))
    return torch.cat([_chunk(part, n, half) for part in matrices.split(step)])


def _diagonal(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).double()


def _share(diagonal: Tensor, b: Tensor) -> Tensor:
    """The mean eigenvalue as a share of b (B,), rows of zeros not counted."""
    return diagonal.sum(-1) / ((diagonal != 0).sum(-1) * b)


def _largest(squared: Tensor, diagonal: Tensor) -> Tensor:
    """A bound on the largest eigenvalue of K (B,) from K²: λ² is at most its mean + √(rows − 1) standard deviations."""
    rows = (diagonal != 0).sum(-1).clamp(min=1)
    second, fourth = _diagonal(squared).sum(-1), pair_sums(squared.unsqueeze(0)).squeeze(-1)
    spread = ((rows - 1) * (rows * fourth - second.square())).clamp(min=0).sqrt()
    return _WIDENED * ((second + spread) / rows).sqrt()


def _chunk(matrices: Tensor, n: int, half: bool) -> Tensor:
    diagonal = _diagonal(matrices)
    unit = diagonal.amax(-1)
    unit = torch.where(unit > 0, unit, 1.0)
    arrays = matrices.new_empty(COUNT, len(matrices), n, n, dtype=torch.float16 if half else matrices.dtype)
    narrow(matrices, 1 / unit, arrays[0])  # entries of at most 1
    with half_products() if half else full_precision(False):
        product(arrays[1], arrays[0], arrays[0])
        b = _largest(arrays[1], diagonal)
        b = torch.where(b > 0, b, 1.0)
        b = 8 / _eleven_bits(8 / b) if half else b
        fill(arrays, b)
    diagonal = diagonal / unit.unsqueeze(-1)
    trace = diagonal.sum(-1)
    sums = torch.cat([(-8 * trace / b).unsqueeze(-1), pair_sums(arrays)], dim=-1)
    value = torch.log(trace / b) - b / trace * (sums * weights(_share(diagonal, b))).sum(-1)
    return torch.where(trace > 0, value, torch.nan)


def _eleven_bits(x: Tensor) -> Tensor:
    """x rounded down to what float16 holds: rows of one length keep one diagonal, and its rounding would not average out."""
    digits, power = torch.frexp(x)
    return torch.ldexp((digits * 2048).floor(), power - 11)
