"""Inverse Cholesky factors of many positive definite matrices at once, through products of matrices.

Each half is factored in turn, the second after what the first explains is taken away, so that all but blocks of 64 rows is
batched products, which a GPU with full-rate float64 does at tens of TFLOP/s; its batched factorisations are far slower.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from layerscope.spectra.cuda import UnusableError, launch

LEAF = 64
_THREADS = 256
# compute capabilities with float64 at half the rate of float32 or better; on others it is 32 to 64 times slower
_FAST_DOUBLES = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))

SOURCE = r"""
// symmetric positive definite matrices of n <= 64 rows, a block each: L^-1 in their place, zeros above the diagonal.
// Rows are eliminated as in Cholesky's method, and the columns that it has used up hold what it does to the identity.
extern "C" __global__ void __launch_bounds__(256)
inverse_factor(double* matrices, int n, int ld, int stride) {
  __shared__ double a[64 * 65];
  __shared__ double row[64];
  double* m = matrices + (size_t)blockIdx.x * stride;
  const int j = threadIdx.x & 63, first = threadIdx.x >> 6;  // a column, and every fourth row of it
  const bool mine = j < n;
  for (int i = first; mine && i < n; i += 4) a[i * 65 + j] = m[(size_t)i * ld + j];
  __syncthreads();
  for (int k = 0; k < n; ++k) {
    const double by = 1. / sqrt(a[k * 65 + k]);
    if (mine && first == 0) row[j] = j == k ? by : a[k * 65 + j] * by;
    __syncthreads();
    for (int i = k + first; mine && i < n; i += 4) {
      if (i == k) a[i * 65 + j] = j <= k ? row[j] : 0.;
      else a[i * 65 + j] = (j == k ? 0. : a[i * 65 + j]) - row[i] * row[j];
    }
    __syncthreads();
  }
  for (int i = first; mine && i < n; i += 4) m[(size_t)i * ld + j] = a[i * 65 + j];
}
"""


def fast_doubles(device: torch.device) -> bool:
    """Whether products of float64 matrices are about as fast as those of float32 on a device."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) in _FAST_DOUBLES


def inverse_factor(matrices: Tensor) -> Tensor:
    """L⁻¹ of symmetric positive definite matrices A = L Lᵀ (B, n, n), float64, which are overwritten; NaN where one is not.

    >>> import torch
    >>> inverse_factor(torch.tensor([[[4.0, 2.0], [2.0, 2.0]]], dtype=torch.float64)).tolist()
    [[[0.5, 0.0], [-0.5, 1.0]]]
    """
    n = matrices.shape[-1]
    if n <= LEAF:
        _leaf(matrices)
        return matrices
    half = n // 2
    first, beside, second = matrices[:, :half, :half], matrices[:, half:, :half], matrices[:, half:, half:]
    inverse_factor(first)
    across = beside @ first.mT  # L₂₁ = A₂₁ L₁₁⁻ᵀ
    second.baddbmm_(across, across.mT, alpha=-1)
    inverse_factor(second)
    torch.baddbmm(beside, second @ across, first, beta=0, alpha=-1, out=beside)
    matrices[:, :half, half:] = 0.0
    return matrices


def log_determinant(factors: Tensor) -> Tensor:
    """log det A (B,) from A's inverse factors."""
    return -2 * factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _leaf(a: Tensor) -> None:
    if a.is_cuda and a.dtype == torch.float64 and a.stride(-1) == 1 and usable(a.device.index):
        _leaf_kernel(a)
        return
    factors, info = torch.linalg.cholesky_ex(a)
    factors = torch.where((info == 0)[:, None, None], factors, torch.nan)
    a.copy_(torch.linalg.solve_triangular(factors, torch.eye(a.shape[-1], dtype=a.dtype, device=a.device), upper=False))


def _leaf_kernel(a: Tensor) -> None:
    launch(SOURCE, "inverse_factor", len(a), _THREADS, 0, [a, a.shape[-1], a.stride(1), a.stride(0)])


@cache
def usable(index: int) -> bool:
    """Whether the kernel works on a device: compiled and tried once."""
    try:
        base = torch.linspace(-1, 1, 3 * 37 * 37, dtype=torch.float64, device=torch.device("cuda", index)).view(3, 37, 37)
        matrices = base @ base.mT + torch.eye(37, dtype=torch.float64, device=base.device)
        found = matrices.clone()
        _leaf_kernel(found)
        return torch.allclose(found.mT @ found, torch.linalg.inv(matrices)) and bool((found.triu(1) == 0).all())
    except (UnusableError, OSError, AttributeError, RuntimeError):
        return False
