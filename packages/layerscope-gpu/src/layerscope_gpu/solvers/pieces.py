"""What the solvers share: a trial on a known answer, and CUDA source for bisection of a tridiagonal
matrix and for products."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor

from layerscope_gpu.cuda import UnusableError

_LARGEST_CHECKED = 2e-5


def problem_with(solve: Callable[[Tensor], Tensor], n: int, index: int) -> str | None:
    """None if a solver compiles on a device and finds the known eigenvalues of matrices of n rows,
    else why not."""
    device = torch.device("cuda", index)
    try:
        matrices, known = known_case(n)
        # on a stream of its own: the host would wait for all that the GPU has been given, and the
        # GPU then for the host
        with torch.cuda.stream(side_stream(device)):
            error = float((solve(matrices.float().to(device)).cpu() - known).abs().max())
        return None if error < _LARGEST_CHECKED else f"it missed known eigenvalues by {error:.1e}"
    except (UnusableError, OSError, AttributeError, RuntimeError) as problem:
        return str(problem)


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream beside the usual one. One for good: every stream keeps memory of its own."""
    return torch.cuda.Stream(device)


def known_case(n: int) -> tuple[Tensor, Tensor]:
    """Three symmetric matrices of n rows (3, n, n), float64, and the eigenvalues that each of them
    has, ascending.

    Their eigenvectors are sine waves. Element by element and without a library: in a first run
    every core is busy compiling, and a QR decomposition by several threads took half a second.
    """
    known, place, rng = np.linspace(-1, 3, n), np.arange(1, n + 1), np.random.default_rng(0)
    waves = np.cos(np.pi / (n + 1) * np.outer(np.arange(2 * n + 1), place))
    apart, together = abs(place[:, None] - place), place[:, None] + place
    sums = [(waves * rng.permutation(known)).sum(1) / (n + 1) for _ in range(3)]
    return torch.from_numpy(
        np.stack([one[apart] - one[together] for one in sums])
    ), torch.from_numpy(known)


# Of the interval that holds all eigenvalues. The reduction's rounding is far more than what is
# left; but many equal eigenvalues (zeros of a matrix of low rank) are all off by the same, and an
# entropy adds that up.
BITS = 28


def halvings(points: int) -> int:
    """How often an interval is halved after a first look at so many points."""
    return BITS - points.bit_length() + 1


BISECTION = r"""
// How many eigenvalues lie below each x: changes of sign in the characteristic polynomials of the leading parts. Entries are
// at most 1 and beside the diagonal not below 1e-9, so four steps neither overflow nor vanish: then both values are rescaled.
template <int N>
__device__ __forceinline__ void count_below(const float2* both, int padded, const float (&x)[N], int (&below)[N]) {
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

// Eigenvalues, ascending, times `size`, of the matrix with this diagonal and these entries beside it; N at a time by a thread.
// In shared memory: both (n rounded up to 16), counts (N x threads), part (64). MEET() is a barrier of the block.
template <int N>
__device__ __forceinline__ void all_eigenvalues(const float* diagonal, const float* beside, int n, float size, int steps,
                                                float* out, int threads, float2* both, int* counts, float* part) {
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
  for (int i = 0; i < threads / 32; ++i) low = fminf(low, part[i]), high = fmaxf(high, part[32 + i]);
  // by a power of two, so that all eigenvalues are within -1 and 1
  const unsigned power = min(max(__float_as_uint(fmaxf(fabsf(low), fabsf(high))) >> 23, 1u), 252u);
  const float by = __uint_as_float((253u - power) << 23), back = __uint_as_float((power + 1u) << 23);
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


UPPER = r"""
#if HALF
// groups of rows for a warp, back and forth, because rows of a triangle get shorter
__device__ __forceinline__ int snake(int turn, int warp, int warps) {
  return turn * warps + (turn & 1 ? warps - 1 - warp : warp);
}

// A warp's share of A v from row `top` on, a multiple of 8: eight rows at a time, their products with v and v with their columns
__device__ __forceinline__ void add_upper(const float* M, const float* v, float* own, int top, int n, int ld, int warp, int warps,
                                          int lane) {
  for (int k = top + lane * 4; k < ld; k += 128) *(float4*)(own + k) = make_float4(0.f, 0.f, 0.f, 0.f);
  __syncwarp();
  for (int turn = 0; turn * warps * 8 < n - top; ++turn) {
    const int i = top + 8 * snake(turn, warp, warps);
    if (i >= n) continue;
    float at[8], s[8];
#pragma unroll
    for (int r = 0; r < 8; ++r) at[r] = i + r < n ? v[i + r] : 0.f, s[r] = 0.f;
    for (int start = i; start < ld; start += 128) {
      const int k = start + lane * 4;
      if (k >= ld) continue;
      float4 a[8];
#pragma unroll
      for (int r = 0; r < 8; ++r) a[r] = *(const float4*)(M + (size_t)min(i + r, n - 1) * ld + k);
      const float4 x = *(const float4*)(v + k);
      if (k < i + 8) {  // around the diagonal: what is below it counts as the entry above it does
#pragma unroll
        for (int r = 0; r < 8; ++r) {
          const int on = i + r - k;
          a[r].x = on > 0 ? 0.f : a[r].x;
          a[r].y = on > 1 ? 0.f : a[r].y;
          a[r].z = on > 2 ? 0.f : a[r].z;
          a[r].w = on > 3 ? 0.f : a[r].w;
        }
      }
#pragma unroll
      for (int r = 0; r < 8; ++r) s[r] = dot4(a[r], x, s[r]);
      if (k < i + 8) {  // the diagonal itself counts once
#pragma unroll
        for (int r = 0; r < 8; ++r) {
          const int on = i + r - k;
          a[r].x = on == 0 ? 0.f : a[r].x;
          a[r].y = on == 1 ? 0.f : a[r].y;
          a[r].z = on == 2 ? 0.f : a[r].z;
          a[r].w = on == 3 ? 0.f : a[r].w;
        }
      }
      float4 sum = *(float4*)(own + k);
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        sum.x = fmaf(a[r].x, at[r], sum.x);
        sum.y = fmaf(a[r].y, at[r], sum.y);
        sum.z = fmaf(a[r].z, at[r], sum.z);
        sum.w = fmaf(a[r].w, at[r], sum.w);
      }
      *(float4*)(own + k) = sum;
    }
    // a row each for four lanes
#pragma unroll
    for (int bit = 16, half = 4; bit > 2; bit >>= 1, half >>= 1) {
      const bool upper = lane & bit;
#pragma unroll
      for (int q = 0; q < half; ++q) {
        const float given = upper ? s[q] : s[q + half], kept = upper ? s[q + half] : s[q];
        s[q] = kept + __shfl_xor_sync(0xffffffffu, given, bit);
      }
    }
    s[0] += __shfl_xor_sync(0xffffffffu, s[0], 2);
    s[0] += __shfl_xor_sync(0xffffffffu, s[0], 1);
    const int row = i + (lane >> 2);
    __syncwarp();
    if ((lane & 3) == 0 && row < n) own[row] += s[0];
    __syncwarp();
  }
}
#endif
"""
