"""Inverse Cholesky factors of many float64 matrices, by recursion over their halves; a kernel
inverts the small ones."""

from __future__ import annotations

import torch
from torch import Tensor

from layerscope_gpu.cuda import launch, tried_once

_THREADS = 256
_LEAF = 64

SOURCE = r"""
// symmetric positive definite matrices of n <= 64 rows, a block each: their lower half becomes
// L^-1, their upper half zeros. Rows are eliminated as in Cholesky's method; the columns that are
// done hold the identity after the same steps. A thread keeps every fourth row of a column in
// registers; the pivot row goes to the other threads through shared memory.
extern "C" __global__ void __launch_bounds__(256)
inverse_factor(double* matrices, int n, int ld, int stride) {
  __shared__ double lower[64 * 65];
  __shared__ double rows[2][64];
  double* m = matrices + (size_t)blockIdx.x * stride;
  const int j = threadIdx.x & 63, first = threadIdx.x >> 6;
  for (int i = first; i < 64; i += 4)  // beyond n: the identity
    if (j <= i) lower[i * 65 + j] = i < n ? m[(size_t)i * ld + j] : (double)(i == j);
  __syncthreads();
  double own[16];
#pragma unroll
  for (int r = 0; r < 16; ++r) {
    const int i = first + 4 * r;
    own[r] = i < j ? lower[j * 65 + i] : lower[i * 65 + j];
  }
#pragma unroll
  for (int turn = 0; turn < 16; ++turn) {
    if (4 * turn >= n) break;
#pragma unroll 1
    for (int k = 4 * turn; k < min(4 * turn + 4, n); ++k) {
      double* row = rows[k & 1];  // two buffers in turn, so that one barrier is enough
      if (first == k - 4 * turn) row[j] = own[turn];
      __syncthreads();
      const double by = rsqrt(row[k]), share = (j == k ? 1. : row[j]) * by, times = by * share;
      if (j == k) {
#pragma unroll
        for (int r = turn; r < 16; ++r) own[r] = 0.;
      }
      if (first > k - 4 * turn) own[turn] -= row[first + 4 * turn] * times;
      if (first == k - 4 * turn) own[turn] = j <= k ? share : 0.;
#pragma unroll
      for (int r = turn + 1; r < 16; ++r) own[r] -= row[first + 4 * r] * times;
    }
  }
#pragma unroll
  for (int r = 0; r < 16; ++r) {
    const int i = first + 4 * r;
    if (i < n && j < n) m[(size_t)i * ld + j] = own[r];
  }
}
"""


def inverse_factor(matrices: Tensor) -> Tensor:
    """Return L⁻¹ of symmetric positive definite matrices A = L Lᵀ (B, n, n), float64, in their
    place.

    Only the lower halves are read. The result is NaN where a matrix is not positive definite.

    >>> import torch
    >>> inverse_factor(torch.tensor([[[4.0, 2.0], [2.0, 2.0]]], dtype=torch.float64)).tolist()
    [[[0.5, 0.0], [-0.5, 1.0]]]
    """
    n = matrices.shape[-1]
    if n <= _LEAF:
        if not leaf_by_kernel(matrices):
            factors, info = torch.linalg.cholesky_ex(matrices)
            factors = torch.where((info == 0)[:, None, None], factors, torch.nan)
            eye = torch.eye(n, dtype=matrices.dtype, device=matrices.device)
            matrices.copy_(torch.linalg.solve_triangular(factors, eye, upper=False))
        return matrices
    half = n // 2
    leading = matrices[:, :half, :half]
    below = matrices[:, half:, :half]
    trailing = matrices[:, half:, half:]
    inverse_factor(leading)
    across = below @ leading.mT  # L₂₁ = A₂₁ L₁₁⁻ᵀ
    trailing.baddbmm_(across, across.mT, alpha=-1)
    inverse_factor(trailing)
    torch.baddbmm(below, trailing @ across, leading, beta=0, alpha=-1, out=below)
    matrices[:, :half, half:] = 0.0
    return matrices


def log_determinant(factors: Tensor) -> Tensor:
    """Return log det A (B,) from A's inverse factors."""
    return -2 * factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def leaf_by_kernel(a: Tensor) -> bool:
    """Replace matrices of at most 64 rows by L⁻¹ as `inverse_factor` does, by the kernel.

    Returns False, and does nothing, where the kernel does not support the matrices.
    """
    fits = a.is_cuda and a.dtype == torch.float64 and a.stride(-1) == 1 and a.shape[-1] <= _LEAF
    if fits and usable(a.device.index):
        _leaf_kernel(a)
        return True
    return False


def _leaf_kernel(a: Tensor) -> None:
    arguments: list[Tensor | int] = [a, a.shape[-1], a.stride(1), a.stride(0)]
    launch(SOURCE, "inverse_factor", len(a), _THREADS, 0, arguments)


@tried_once
def usable(index: int) -> bool:
    """Try the kernel on three matrices."""
    base = torch.linspace(
        -1, 1, 3 * 37 * 37, dtype=torch.float64, device=torch.device("cuda", index)
    )
    base = base.view(3, 37, 37)
    eye = torch.eye(37, dtype=torch.float64, device=base.device)
    matrices = base @ base.mT + eye
    factors = matrices.clone()
    _leaf_kernel(factors)
    product = factors @ matrices @ factors.mT
    return torch.allclose(product, eye) and not factors.triu(1).any()
