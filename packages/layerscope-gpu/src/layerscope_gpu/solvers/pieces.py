"""Functions that the solvers share: a trial on a known answer, copies of batches, and bisection of
tridiagonal matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import torch
from torch import Tensor

from layerscope_gpu.cuda import FAILURES, launch, multiprocessors

LARGEST_TRIAL_ERROR = 2e-5
SMALLEST_ENTRY = 1e-36  # of the largest entry of a matrix; float32 can represent its inverse
_COPY_BYTES = 2**30

# An interval that holds all eigenvalues is halved to 2^-28 of its length. The reduction's rounding
# is much larger, but many equal eigenvalues (zeros of a matrix of low rank) have the same error
# here, and an entropy adds that up.
BITS = 28


def find_problem(solve: Callable[[Tensor], Tensor], n: int, index: int) -> str | None:
    """Return None if a solver gives the known eigenvalues of matrices of n rows, else the
    reason."""
    matrices, eigenvalues = known_case(n)
    return compare_with(solve, matrices, eigenvalues, index)


def compare_with(
    solve: Callable[[Tensor], Tensor], matrices: Tensor, expected: Tensor, index: int
) -> str | None:
    """Return None if a solver gives a known answer on a device, else the reason."""
    device = torch.device("cuda", index)
    try:
        # on another stream: on the usual one the host would wait for all queued work, and the GPU
        # then for the host
        with torch.cuda.stream(side_stream(device)):
            result = solve(matrices.float().to(device)).cpu()
    except FAILURES as problem:
        return str(problem)
    error = float((result - expected).abs().max())
    return None if error < LARGEST_TRIAL_ERROR else f"its error on a known answer is {error:.1e}"


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a second stream. It is created once, since every stream reserves memory."""
    return torch.cuda.Stream(device)


def known_case(n: int) -> tuple[Tensor, Tensor]:
    """Return three symmetric matrices (3, n, n), float64, and their common eigenvalues.

    Their eigenvectors are sine waves, computed element by element. In a first run every core is
    busy compiling, and a QR decomposition by several threads took half a second.
    """
    eigenvalues = np.linspace(-1, 3, n)
    place = np.arange(1, n + 1)
    rng = np.random.default_rng(0)
    waves = np.cos(np.pi / (n + 1) * np.outer(np.arange(2 * n + 1), place))
    difference = abs(place[:, None] - place)
    total = place[:, None] + place
    matrices = []
    for _ in range(3):
        sums = (waves * rng.permutation(eigenvalues)).sum(1) / (n + 1)
        matrices.append(sums[difference] - sums[total])
    return torch.from_numpy(np.stack(matrices)), torch.from_numpy(eigenvalues)


def parts(matrices: Tensor, min_blocks: int, overwrite: bool) -> Iterator[slice]:
    """Yield parts of a batch whose copies take at most a gigabyte, or all if nothing is copied."""
    if overwrite and _is_aligned(matrices):
        yield slice(None)
        return
    step = max(1, _COPY_BYTES // (4 * matrices.shape[-1] ** 2))
    if matrices.is_cuda:  # a multiple of the blocks that run at once
        at_once = multiprocessors(matrices.device) * min_blocks
        step = max(1, step // at_once) * at_once
    for start in range(0, len(matrices), step):
        yield slice(start, start + step)


def largest_entries(matrices: Tensor) -> Tensor:
    """Return the absolute value of each matrix's largest entry, at least SMALLEST_ENTRY.

    It is 1 where all entries are zero, and NaN where an entry is infinite or NaN.
    """
    lowest, highest = torch.aminmax(matrices.flatten(1), dim=-1)
    size = torch.maximum(lowest.abs(), highest.abs())
    finite = torch.where(size.isinf(), torch.nan, size.clamp(min=SMALLEST_ENTRY))
    return torch.where(size == 0, 1.0, finite)


def padded(matrices: Tensor, overwrite: bool) -> Tensor:
    """Return a copy whose rows are padded with zeros to a multiple of four; or the matrices
    themselves, if they may be overwritten and need no padding."""
    if _is_aligned(matrices):
        return matrices if overwrite else matrices.clone()
    count, n = matrices.shape[:2]
    copy = matrices.new_zeros(count, n, -(-n // 4) * 4)
    copy[..., :n] = matrices
    return copy


def _is_aligned(matrices: Tensor) -> bool:
    """Return True if a kernel can read the matrices without a copy."""
    return (
        matrices.shape[-1] % 4 == 0 and matrices.is_contiguous() and matrices.data_ptr() % 16 == 0
    )


def halvings(points: int) -> int:
    """Return the number of halvings of an interval after a first count at this many points."""
    return BITS - points.bit_length() + 1


def bisect(source: str, diagonal: Tensor, beside: Tensor, scale: Tensor, out: Tensor) -> None:
    """Write the eigenvalues, ascending, times `scale`, of tridiagonal matrices (batch, n).

    The last entry of `beside` is not used.
    """
    count, n = out.shape
    threads = min(1024, -(-n // 32) * 32)
    shared_bytes = 8 * (-(-n // 16) * 16) + 256 + 4 * threads
    arguments: list[Tensor | int] = [diagonal, beside, scale, out, n, halvings(threads)]
    launch(source, "bisect", count, threads, shared_bytes, arguments)


DOT4 = r"""
__device__ __forceinline__ float dot4(float4 a, float4 b, float s) {
  return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, s))));
}
"""

BISECTION = r"""
// The number of eigenvalues below each x: changes of sign in the characteristic polynomials of the
// leading blocks. Entries are at most 1 and beside the diagonal at least 1e-9, so that four steps
// neither overflow nor underflow; then both values are rescaled.
template <int N>
__device__ __forceinline__ void count_below(const float2* both, int padded, const float (&x)[N],
                                            int (&below)[N]) {
  float p[N], before[N];
  unsigned signs[N];
#pragma unroll
  for (int e = 0; e < N; ++e) p[e] = 1.f, before[e] = 0.f, signs[e] = 0u, below[e] = 0;
#pragma unroll 1
  for (int i = 0; i < padded; i += 16) {
#pragma unroll
    for (int t = 0; t < 16; t += 4) {
      const float4 one = *(const float4*)(both + i + t), two = *(const float4*)(both + i + t + 2);
      const float d[4] = {one.x, one.z, two.x, two.z}, b[4] = {one.y, one.w, two.y, two.w};
#pragma unroll
      for (int e = 0; e < N; ++e) {
#pragma unroll
        for (int o = 0; o < 4; ++o) {
          const float next = fmaf(d[o] - x[e], p[e], -(b[o] * before[e]));
          before[e] = p[e];
          p[e] = next;
          signs[e] = __funnelshift_l(__float_as_uint(next), signs[e], 1);
        }
        const float size = fmaxf(fabsf(p[e]), fabsf(before[e]));
        const float by = __uint_as_float(0x7f000000u - (__float_as_uint(size) & 0x7f800000u));
        p[e] *= by;
        before[e] *= by;
      }
    }
#pragma unroll
    for (int e = 0; e < N; ++e) below[e] += __popc((signs[e] ^ (signs[e] >> 1)) & 0xffffu);
  }
}

// Eigenvalues, ascending, times `size`, of the matrix with this diagonal and these entries beside
// it; a thread computes N at a time. In shared memory: both (n rounded up to 16), counts
// (N x threads), part (64). MEET() is a barrier of the block.
template <int N>
__device__ __forceinline__ void all_eigenvalues(const float* diagonal, const float* beside, int n,
                                                float size, int steps, float* out, int threads,
                                                float2* both, int* counts, float* part) {
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, points = N * threads;
  float low = 3e38f, high = -3e38f;
  for (int i = tid; i < n; i += threads) {
    const float reach = (i > 0 ? fabsf(beside[i - 1]) : 0.f) + (i + 1 < n ? fabsf(beside[i]) : 0.f);
    low = fminf(low, diagonal[i] - reach);
    high = fmaxf(high, diagonal[i] + reach);
  }
  for (int bit = 16; bit > 0; bit >>= 1) {
    low = fminf(low, __shfl_xor_sync(0xffffffffu, low, bit));
    high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, bit));
  }
  if (lane == 0) part[warp] = low, part[32 + warp] = high;
  MEET();
  for (int i = 0; i < threads / 32; ++i) {
    low = fminf(low, part[i]);
    high = fmaxf(high, part[32 + i]);
  }
  // scale by a power of two, so that all eigenvalues are between -1 and 1
  const unsigned power = min(max(__float_as_uint(fmaxf(fabsf(low), fabsf(high))) >> 23, 1u), 252u);
  const float by = __uint_as_float((253u - power) << 23);
  const float back = __uint_as_float((power + 1u) << 23);
  low = low * by - 1e-6f;
  high = high * by + 1e-6f;
  const int padded = (n + 15) / 16 * 16;
  for (int i = tid; i < padded; i += threads) {
    const float e = i > 0 && i < n ? beside[i - 1] * by : 0.f;
    both[i] = i < n ? make_float2(diagonal[i] * by, fmaxf(e * e, 1e-18f)) : make_float2(2.f, 0.f);
  }
  MEET();
  const float gap = (high - low) / (points + 1);
  float x[N], a[N], b[N];
  int below[N];
#pragma unroll
  for (int e = 0; e < N; ++e) x[e] = low + gap * (tid + e * threads + 1);
  count_below<N>(both, padded, x, below);
#pragma unroll
  for (int e = 0; e < N; ++e) counts[tid + e * threads] = below[e];
  MEET();
  for (int index = tid; warp * 32 + index - tid < n; index += points) {
#pragma unroll
    for (int e = 0; e < N; ++e) {
      int left = -1, right = points;
      while (right - left > 1) {
        const int middle = (left + right) >> 1;
        if (counts[middle] <= index + e * threads) left = middle; else right = middle;
      }
      a[e] = low + gap * (left + 1);
      b[e] = right == points ? high : low + gap * (right + 1);
    }
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int e = 0; e < N; ++e) x[e] = 0.5f * (a[e] + b[e]);
      count_below<N>(both, padded, x, below);
#pragma unroll
      for (int e = 0; e < N; ++e)
        if (below[e] <= index + e * threads) a[e] = x[e]; else b[e] = x[e];
    }
#pragma unroll
    for (int e = 0; e < N; ++e)
      if (index + e * threads < n) out[index + e * threads] = 0.5f * (a[e] + b[e]) * back * size;
  }
}
"""

EIGENVALUES = r"""
extern "C" __global__ void __launch_bounds__(1024)
bisect(const float* diagonal, const float* beside, const float* scale, float* out, int n,
       int steps) {
  extern __shared__ __align__(16) float shared[];
  float2* both = (float2*)shared;                             // n, rounded up to 16
  float* part = (float*)(both + (n + 15) / 16 * 16);          // 64
  int* counts = (int*)(part + 64);                            // one for every thread
  const size_t at = (size_t)blockIdx.x * n;
  all_eigenvalues<1>(diagonal + at, beside + at, n, scale[blockIdx.x], steps, out + at, blockDim.x,
                     both, counts, part);
}
"""
