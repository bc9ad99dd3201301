"""Eigenvalues of many float32 matrices on a GPU with kernels of our own: tridiagonal form, then
bisection.

cuSOLVER's batched solver spends most of its time where memory bandwidth should be the limit; one
thread block per matrix with deferred updates comes closer to it (`benchmark.py` measures it). Used
where NVRTC can compile it and a first solve is right, for matrices that neither `small.py` nor
`band.py` can take.

One thread block works on one matrix, so a batch keeps the whole chip busy. Columns are reduced in
panels of PANEL: within a panel the matrix in memory stays as it is and the pending rank-2 updates
live in shared memory (LAPACK's latrd); after it, one pass over the trailing matrix applies them. So
each column costs one read of the trailing matrix, which limits the speed: with HALF only its upper
triangle is read and kept, each entry counting for its row and its column.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from layerscope_gpu.cuda import WARP_SUM, launch, multiprocessors, shared_memory
from layerscope_gpu.solvers.pieces import BISECTION, UPPER, halvings, problem_with

_COPY_BYTES = 2**30
SMALLEST_ENTRY = 1e-36  # of a largest one, whose inverse float32 can hold


@cache
def largest(index: int) -> int:
    """The largest matrix whose panels fit into a multiprocessor's shared memory."""
    return (shared_memory(index) - 1024) // (4 * (2 * PANEL + 1)) // 4 * 4


class PanelVariant(NamedTuple):
    """How the reduction is compiled for matrices of a size: see the macros of the source."""

    threads: int
    min_blocks: int
    rows: int
    half: int = 0

    @property
    def source(self) -> str:
        """The source with its macros set."""
        names = ("THREADS", "MIN_BLOCKS", "ROWS", "HALF")
        return (
            "".join(f"#define {name} {value}\n" for name, value in zip(names, self, strict=True))
            + SOURCE
        )

    def shared(self, n: int) -> int:
        """Bytes of shared memory for matrices of n rows: panels, a vector, and with `half` one more
        for every warp."""
        width = -(-n // 4) * 4
        return 4 * ((2 * PANEL + 1 + self.half * self.threads // 32) * width + 2 * PANEL + 32)


def variant(n: int, shared: int) -> PanelVariant:
    """The fastest variant for n rows that fits into so many bytes of shared memory, if possible one
    that reads half of each."""
    if n <= 128:
        return PanelVariant(128, 8, 4)
    whole = PanelVariant(256, 2, 8) if n <= 256 else PanelVariant(512, 1, 8)
    half = whole._replace(half=1)
    return half if half.shared(n) <= shared // half.min_blocks - 1024 else whole


def usable(index: int, n: int = 512) -> str | None:
    """None if the kernels work on a device for matrices of n rows, else why not."""
    how = variant(n, shared_memory(index))
    problem = _tried(index, how)
    return _tried(index, how._replace(half=0)) if problem and how.half else problem


def _chosen(index: int, n: int) -> PanelVariant:
    how = variant(n, shared_memory(index))
    return how._replace(half=0) if how.half and _tried(index, how) else how


@cache
def _tried(index: int, how: PanelVariant) -> str | None:
    """Compile the kernels and try them on matrices with a known answer, once."""
    return problem_with(lambda matrices: eigvalsh(matrices, how=how), how.threads // 2 + 6, index)


def eigvalsh(matrices: Tensor, overwrite: bool = False, how: PanelVariant | None = None) -> Tensor:
    """Eigenvalues, ascending, of symmetric CUDA matrices (batch, n, n), float32. NaN in, NaN
    out."""
    n = matrices.shape[-1]
    how = how or _chosen(matrices.device.index, n)
    out = matrices.new_empty(matrices.shape[:-1])
    for part in parts(matrices, how.min_blocks, overwrite):
        _solve(matrices[part], out[part], overwrite, how)
    return out


def parts(matrices: Tensor, min_blocks: int, overwrite: bool) -> Iterator[slice]:
    """Parts of a batch whose copies take at most a gigabyte; the whole batch where nothing is
    copied."""
    if overwrite and _is_aligned(matrices):
        yield slice(None)
        return
    step = max(1, _COPY_BYTES // (4 * matrices.shape[-1] ** 2))
    if matrices.is_cuda:  # a block for every multiprocessor, as often as that goes
        at_once = multiprocessors(matrices.device) * min_blocks
        step = max(1, step // at_once) * at_once
    for start in range(0, len(matrices), step):
        yield slice(start, start + step)


def _solve(matrices: Tensor, out: Tensor, overwrite: bool, how: PanelVariant) -> None:
    copy, scale = scaled_copy(matrices, overwrite)
    count, n, width = copy.shape
    diagonal, beside = (matrices.new_empty(count, n) for _ in range(2))
    launch(
        how.source,
        "tridiagonal",
        count,
        how.threads,
        how.shared(n),
        [copy, diagonal, beside, n, width],
    )
    bisect(how.source, diagonal, beside, scale, out)


def scaled_copy(matrices: Tensor, overwrite: bool) -> tuple[Tensor, Tensor]:
    """Matrices over their largest entries, rows padded with zeros to a multiple of four; and those
    entries.

    Entries are of order one then: squares of very large or small ones would leave float32.
    """
    by = largest_entries(matrices)
    return padded(matrices, overwrite).div_(by[:, None, None]), by


def largest_entries(matrices: Tensor) -> Tensor:
    """The size of the largest entry of each matrix, or a bit more; 1 where all are zero, NaN where
    one is infinite or NaN."""
    lowest, highest = torch.aminmax(matrices.flatten(1), dim=-1)
    size = torch.maximum(lowest.abs(), highest.abs())
    return torch.where(
        size == 0, 1.0, torch.where(size.isinf(), torch.nan, size.clamp(min=SMALLEST_ENTRY))
    )


def padded(matrices: Tensor, overwrite: bool) -> Tensor:
    """A copy, its rows padded with zeros to a multiple of four; the matrices themselves where they
    may be overwritten."""
    if _is_aligned(matrices):
        return matrices if overwrite else matrices.clone()
    count, n = matrices.shape[:2]
    copy = matrices.new_zeros(count, n, -(-n // 4) * 4)
    copy[..., :n] = matrices
    return copy


def _is_aligned(matrices: Tensor) -> bool:
    """Whether a kernel can read the matrices where they are."""
    return (
        matrices.shape[-1] % 4 == 0 and matrices.is_contiguous() and matrices.data_ptr() % 16 == 0
    )


def bisect(source: str, diagonal: Tensor, beside: Tensor, scale: Tensor, out: Tensor) -> None:
    """Eigenvalues, ascending, times `scale`, of tridiagonal matrices (batch, n), of whose `beside`
    the last entry is not used."""
    count, n = out.shape
    across = min(1024, -(-n // 32) * 32)
    shared_bytes = 8 * (-(-n // 16) * 16) + 256 + 4 * across
    launch(
        source,
        "bisect",
        count,
        across,
        shared_bytes,
        [diagonal, beside, scale, out, n, halvings(across)],
    )


PANEL = 16

DOT4 = r"""
__device__ __forceinline__ float dot4(float4 a, float4 b, float s) {
  return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, s))));
}
"""

START = (
    WARP_SUM
    + r"""
#define PANEL 16
#ifndef THREADS
#define THREADS 512
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif
#ifndef ROWS
#define ROWS 8        // of a tile of the update: 4 or 8
#endif
#ifndef HALF
#define HALF 0        // 1: only the upper triangle; takes a copy of y for every warp
#endif

#define MEET() __syncthreads()
"""
    + DOT4
)

REDUCTION = r"""
// symmetric matrices (n x ld, rows padded with zeros to a multiple of 4), overwritten; diagonals and off-diagonals out
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
tridiagonal(float* matrices, float* diagonal, float* beside, int n, int ld) {
  extern __shared__ __align__(16) float shared[];
  float* V = shared;            // PANEL x ld: Householder vectors
  float* W = V + PANEL * ld;    // PANEL x ld: their partners, A <- A - v w' - w v'
  float* y = W + PANEL * ld;    // ld
  float* dots = y + ld;         // 2 PANEL
  float* part = dots + 2 * PANEL;
  float* part2 = part + 16;
#if HALF
  float* sums = part2 + 16;     // a vector for every warp
#endif
  const int tid = threadIdx.x, threads = blockDim.x, lane = tid & 31, warp = tid >> 5, warps = threads >> 5;
  float* M = matrices + (size_t)blockIdx.x * n * ld;
  diagonal += (size_t)blockIdx.x * n;
  beside += (size_t)blockIdx.x * n;
  for (int start = 0; start < n; start += PANEL) {
    for (int i = tid; i < 2 * PANEL * ld; i += threads) shared[i] = 0.f;
    __syncthreads();
    const int columns = min(PANEL, n - start);
    for (int c = 0; c < columns; ++c) {
      const int j = start + c;
      float* v = V + c * ld;
      float* w = W + c * ld;
      // the column as it is by now (read as a row: the matrix is symmetric)
      float square = 0.f;
      for (int i = j + tid; i < n; i += threads) {
        float x = M[(size_t)j * ld + i];
        for (int r = 0; r < c; ++r) x = fmaf(-V[r * ld + i], W[r * ld + j], fmaf(-W[r * ld + i], V[r * ld + j], x));
        v[i] = x;
        if (i > j + 1) square += x * x;
      }
      square = warp_sum(square);
      if (lane == 0) part[warp] = square;
      __syncthreads();
      square = 0.f;
      for (int i = 0; i < warps; ++i) square += part[i];
      const float head = j + 1 < n ? v[j + 1] : 0.f;
      if (tid == 0) diagonal[j] = v[j];
      const bool reduced = !(square > 0.f);  // nothing below the off-diagonal
      float tau = 0.f, scale = 0.f, off = head;
      if (!reduced) {
        const float norm = sqrtf(head * head + square);
        off = head >= 0.f ? -norm : norm;
        tau = (off - head) / off;
        scale = 1.f / (head - off);
      }
      if (tid == 0) beside[j] = off;
      __syncthreads();
      for (int i = j + tid; i < n; i += threads) v[i] = (reduced || i == j) ? 0.f : (i == j + 1 ? 1.f : v[i] * scale);
      __syncthreads();
      if (reduced) continue;
      // y = A v over the trailing rows; and the products of v with the panel so far
      const int first = (j + 1) & ~3;
#if HALF
      add_upper(M, v, sums + warp * ld, (j + 1) & ~7, n, ld, warp, warps, lane);
#else
      const int rows = n - j - 1;
      for (int g = warp * 4; g < rows; g += warps * 4) {
        const int i = j + 1 + g;
        const float* r0 = M + (size_t)i * ld;
        const float* r1 = M + (size_t)min(i + 1, n - 1) * ld;
        const float* r2 = M + (size_t)min(i + 2, n - 1) * ld;
        const float* r3 = M + (size_t)min(i + 3, n - 1) * ld;
        float s0 = 0.f, s1 = 0.f, s2 = 0.f, s3 = 0.f;
#pragma unroll 2
        for (int k = first + lane * 4; k < ld; k += 128) {
          const float4 x = *(const float4*)(v + k);
          s0 = dot4(*(const float4*)(r0 + k), x, s0);
          s1 = dot4(*(const float4*)(r1 + k), x, s1);
          s2 = dot4(*(const float4*)(r2 + k), x, s2);
          s3 = dot4(*(const float4*)(r3 + k), x, s3);
        }
        s0 = warp_sum(s0);
        s1 = warp_sum(s1);
        s2 = warp_sum(s2);
        s3 = warp_sum(s3);
        if (lane == 0) {
          y[i] = s0;
          if (i + 1 < n) y[i + 1] = s1;
          if (i + 2 < n) y[i + 2] = s2;
          if (i + 3 < n) y[i + 3] = s3;
        }
      }
#endif
      for (int r = warp; r < 2 * c; r += warps) {
        const float* row = r < c ? W + r * ld : V + (r - c) * ld;
        float s = 0.f;
        for (int k = first + lane; k < n; k += 32) s += row[k] * v[k];
        s = warp_sum(s);
        if (lane == 0) dots[r] = s;
      }
      __syncthreads();
      float along = 0.f;
      for (int i = j + 1 + tid; i < n; i += threads) {
#if HALF
        float s = 0.f;
        for (int k = 0; k < warps; ++k) s += sums[k * ld + i];
#else
        float s = y[i];
#endif
        for (int r = 0; r < c; ++r) s = fmaf(-V[r * ld + i], dots[r], fmaf(-W[r * ld + i], dots[c + r], s));
        y[i] = s;
        along += s * v[i];
      }
      along = warp_sum(along);
      if (lane == 0) part2[warp] = along;
      __syncthreads();
      along = 0.f;
      for (int i = 0; i < warps; ++i) along += part2[i];
      const float half = 0.5f * tau * tau * along;
      for (int i = j + 1 + tid; i < n; i += threads) w[i] = tau * y[i] - half * v[i];
      __syncthreads();
    }
    // apply the panel to the trailing matrix: tiles of ROWS rows x 128 columns, one warp each
    const int next = start + PANEL;
    if (next < n) {
#if HALF
      for (int turn = 0; turn * warps * ROWS < n - next; ++turn)
      for (int i = next + snake(turn, warp, warps) * ROWS, k = i + lane * 4; i < n && k < ld; k += 128) {
#else
      const int across = (ld - next + 127) / 128, tiles = (n - next + ROWS - 1) / ROWS * across;
      for (int t = warp; t < tiles; t += warps) {
        const int i = next + t / across * ROWS, k = next + t % across * 128 + lane * 4;
        if (k >= ld) continue;
#endif
        float4 old[ROWS], sum[ROWS];  // read first: no load may pass a store, and one after the other would wait for memory
#pragma unroll
        for (int a = 0; a < ROWS; ++a) old[a] = *(const float4*)(M + (size_t)min(i + a, n - 1) * ld + k);
#pragma unroll
        for (int a = 0; a < ROWS; ++a) sum[a] = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 2
        for (int r = 0; r < PANEL; ++r) {
          const float4 vk = *(const float4*)(V + r * ld + k), wk = *(const float4*)(W + r * ld + k);
          float vi[ROWS], wi[ROWS];
#pragma unroll
          for (int a = 0; a < ROWS; a += 4) {
            const float4 va = *(const float4*)(V + r * ld + i + a), wa = *(const float4*)(W + r * ld + i + a);
            vi[a] = va.x, vi[a + 1] = va.y, vi[a + 2] = va.z, vi[a + 3] = va.w;
            wi[a] = wa.x, wi[a + 1] = wa.y, wi[a + 2] = wa.z, wi[a + 3] = wa.w;
          }
#pragma unroll
          for (int a = 0; a < ROWS; ++a) {
            sum[a].x = fmaf(vi[a], wk.x, fmaf(wi[a], vk.x, sum[a].x));
            sum[a].y = fmaf(vi[a], wk.y, fmaf(wi[a], vk.y, sum[a].y));
            sum[a].z = fmaf(vi[a], wk.z, fmaf(wi[a], vk.z, sum[a].z));
            sum[a].w = fmaf(vi[a], wk.w, fmaf(wi[a], vk.w, sum[a].w));
          }
        }
#pragma unroll
        for (int a = 0; a < ROWS; ++a) {
          if (i + a < n) {
            const float4 was = old[a], by = sum[a];
            *(float4*)(M + (size_t)(i + a) * ld + k) = make_float4(was.x - by.x, was.y - by.y, was.z - by.z, was.w - by.w);
          }
        }
      }
      __syncthreads();
    }
  }
}
"""

EIGENVALUES = r"""
extern "C" __global__ void __launch_bounds__(1024)
bisect(const float* diagonal, const float* beside, const float* scale, float* out, int n, int steps) {
  extern __shared__ __align__(16) float shared[];
  float2* both = (float2*)shared;                             // n, rounded up to 16
  float* part = (float*)(both + (n + 15) / 16 * 16);          // 64
  int* counts = (int*)(part + 64);                            // one for every thread
  const size_t at = (size_t)blockIdx.x * n;
  all_eigenvalues<1>(diagonal + at, beside + at, n, scale[blockIdx.x], steps, out + at, blockDim.x, both, counts, part);
}
"""

SOURCE = START + UPPER + REDUCTION + BISECTION + EIGENVALUES
