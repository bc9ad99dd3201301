"""Eigenvalues of many float32 matrices on a GPU: reduction to a band, then to tridiagonal form,
then bisection.

A reduction column by column reads the trailing matrix once per column: 100 MB per matrix of 512
rows, which takes longer than the arithmetic. Here a panel of 16 columns costs one read and one
write of it, 22 MB in all. The kernels are used where NVRTC can compile them and a first solve is
right; cuSOLVER is used otherwise.

First stage (`to_band`), one thread block per matrix. The QR of a panel is in registers, whole rows
in each thread. One reduction per column gives its norm and its products with all other columns, so
a column costs one barrier. The panel's reflections are I - V T V', and the matrix becomes
A - V Y' - Y V' with X = A V and Y = (X - V T' V'X / 2) T. One pass over the matrix applies this and
multiplies the result by the V of the next panel, whose columns were updated before
(`band_passes.py`). A matrix of 512 rows takes 8.2 us on an H200 (`DECISIONS.md` has the details).

Second stage (`chase`): the band is in shared memory. A sweep reduces one column, and moves the
entries that this creates outside of the band down to the end, 16 rows a step. The next sweep
follows two steps later, so n / 32 sweeps run at once, sixteen threads each, with two barriers a
step. It takes 4.5 us for 512 rows.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from torch import Tensor

from layerscope_gpu.cuda import define, launch, shared_memory
from layerscope_gpu.solvers.band_passes import SMALL_PARTS, STRIP
from layerscope_gpu.solvers.pieces import (
    BISECTION,
    DOT4,
    EIGENVALUES,
    bisect,
    find_problem,
    largest_entries,
    padded,
    parts,
)

BAND = 16
LARGEST_ENTRY = 16.0  # eigenvalues of up to 1,024 times that are within float16's range
SMALLEST = 193
LARGEST = 1024


class BandVariant(NamedTuple):
    """The macros with which both stages are compiled for matrices of a size."""

    threads: int
    min_blocks: int
    rows: int  # rows of a thread in the QR of a panel
    ahead: int = 3  # groups of 16 columns that are loaded ahead
    chase_threads: int = 256
    chase_blocks: int = 3

    @property
    def first_stage(self) -> str:
        """Return the source of the first stage with its macros set."""
        names = ("THREADS", "MIN_BLOCKS", "EACH", "AHEAD", "CHASE_THREADS", "CHASE_BLOCKS")
        return define(dict(zip(names, self, strict=True))) + START + STRIP + REDUCTION

    @property
    def source(self) -> str:
        """Return the source of both stages and of bisection."""
        return self.first_stage + CHASE + BISECTION + EIGENVALUES

    @property
    def largest(self) -> int:
        """Return the rows of the largest matrix that its registers and its sweeps support."""
        return min(self.threads * self.rows, 2 * self.chase_threads + 2)

    def shared(self, n: int) -> int:
        """Return the bytes of shared memory of the first stage for matrices of n rows."""
        return 4 * (3 * BAND * (-(-n // BAND) * BAND) + (self.threads // 32 + 3) * BAND * BAND)

    @staticmethod
    def chase_shared(n: int) -> int:
        """Return the bytes of shared memory of the second stage for matrices of n rows."""
        return 4 * (2 * BAND + 2) * max(n + BAND, 3 * BAND)


def best_variant(n: int) -> BandVariant:
    """Return the variant that is the fastest for matrices of n rows on an H200."""
    if n <= 256:
        return BandVariant(128, 4, 2, chase_threads=128, chase_blocks=4)
    if n <= 384:
        return BandVariant(192, 2, 2, chase_blocks=2)
    if n <= 512:
        return BandVariant(256, 2, 2)
    return BandVariant(384, 1, 3, chase_threads=512, chase_blocks=1)


def usable(index: int, n: int = 512) -> str | None:
    """Return None if the kernels work on a device for matrices of n rows, else the reason."""
    if not SMALLEST <= n <= LARGEST:
        return f"matrices have {n} rows; the kernel supports {SMALLEST} to {LARGEST}"
    variant = best_variant(n)
    if max(variant.shared(n), variant.chase_shared(n)) > shared_memory(index):
        return "its panels do not fit into shared memory"
    return _trial_problem(index, variant)


@cache
def _trial_problem(index: int, variant: BandVariant) -> str | None:
    """Compile the kernels and try them on matrices with a known answer, once."""
    return find_problem(
        lambda matrices: eigvalsh(matrices, variant=variant), min(variant.largest - 3, 250), index
    )


def eigvalsh(
    matrices: Tensor, overwrite: bool = False, variant: BandVariant | None = None
) -> Tensor:
    """Return eigenvalues, ascending, of symmetric CUDA matrices (batch, n, n), float32.

    They are NaN where a matrix has a NaN.
    """
    variant = variant or best_variant(matrices.shape[-1])
    out = matrices.new_empty(matrices.shape[:-1])
    for batch in parts(matrices, variant.min_blocks, overwrite):
        size = largest_entries(matrices[batch])
        band = to_band(matrices[batch], size, variant, overwrite)
        bisect(variant.source, *from_band(band, variant), size / LARGEST_ENTRY, out[batch])
    return out


def to_band(
    matrices: Tensor,
    size: Tensor,
    variant: BandVariant,
    overwrite: bool = False,
    source: str | None = None,
) -> Tensor:
    """Return bands (batch, n, 17): the diagonal entry of every column and the 16 below it.

    They are scaled by LARGEST_ENTRY over the largest entry (batch,), since squares of very large or
    small entries would leave float32's range.
    """
    copy = padded(matrices, overwrite)
    count, n, width = copy.shape
    band = copy.new_zeros(count, n, BAND + 1)
    arguments: list[Tensor | int] = [copy, LARGEST_ENTRY / size, band, n, width]
    launch(
        source or variant.source, "to_band", count, variant.threads, variant.shared(n), arguments
    )
    return band


def from_band(band: Tensor, variant: BandVariant) -> tuple[Tensor, Tensor]:
    """Return the diagonals and the entries beside them of the tridiagonal forms of bands."""
    count, n = band.shape[:2]
    diagonal, beside = (band.new_empty(count, n) for _ in range(2))
    launch(
        variant.source,
        "chase",
        count,
        variant.chase_threads,
        variant.chase_shared(n),
        [band, diagonal, beside, n],
    )
    return diagonal, beside


START = (
    r"""
#define B 16                  // width of the band, columns of a panel
#define WARPS (THREADS / 32)
#define NEGLIGIBLE 1e-30f     // a sum of squares, with entries of order one
#define FULL 0xffffffffu
#define MEET() __syncthreads()
"""
    + DOT4
    + r"""
// H = I - tau v v' that maps (head, rest) to (off, 0): v = (1, rest * scale); tau is 0 if rest is
struct Reflection { float off, tau, scale; };
__device__ __forceinline__ Reflection reflection(float head, float square) {
  if (!(square > NEGLIGIBLE)) return {head, 0.f, 0.f};
  const float norm = sqrtf(fmaf(head, head, square)), off = head >= 0.f ? -norm : norm;
  return {off, (off - head) / off, 1.f / (head - off)};
}
"""
    + SMALL_PARTS
)

REDUCTION = r"""
// symmetric matrices (n x ld, rows padded with zeros to a multiple of 4), overwritten; the band:
// B + 1 entries of each column, from the diagonal down
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
to_band(float* matrices, const float* by, float* band, int n, int ld) {
  extern __shared__ __align__(16) float shared[];
  const int rows_held = (ld + 15) / 16 * 16;  // tensor cores take 16 at a time
  float* V = shared;             // rows_held x B each: the reflections that are not yet applied
  float* Y = V + rows_held * B;
  float* Z = Y + rows_held * B;  // and those of this panel
  float* part = Z + rows_held * B;  // WARPS x B x B
  float* T = part + WARPS * B * B;
  float* S = T + B * B;
  float* N = S + B * B;
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, own = lane & 15;
  float* M = matrices + (size_t)blockIdx.x * n * ld;
  band += (size_t)blockIdx.x * n * (B + 1);
  // rows below the last one
  for (int i = tid; i < 3 * rows_held * B; i += THREADS) shared[i] = 0.f;
  __syncthreads();
  for (int s = 0; s < n; s += B) {
    // the first pass that writes is the second panel's
    const float scale = s <= B ? by[blockIdx.x] : 1.f;
    // the panel with its updates, then a row for every thread and k
    for (int i = s + warp * 16; i < ld; i += WARPS * 16) {
      if (s > 0) panel_rows<true>(M, V, Y, Z, scale, i, s, n, ld);
      else panel_rows<false>(M, V, Y, Z, scale, i, s, n, ld);
    }
    __syncthreads();
    float x[EACH][B] = {};
#pragma unroll
    for (int k = 0; k < EACH; ++k)
      if (s + tid + k * THREADS < ld) get(Z, s + tid + k * THREADS, x[k]);
    if (tid < B) {  // the block on the diagonal is done
#pragma unroll
      for (int c = 0; c < B; ++c) {
        if (c <= tid && s + tid < n) band[(s + c) * (B + 1) + tid - c] = x[0][c];
        x[0][c] = 0.f;
      }
    }
    const int first = s + B;
    if (first >= n) break;
    // QR below. In turn c column c comes first in x and the vectors of the reflections last, so
    // that indices are constants.
    float t[B] = {};  // of one warp: row `own` of T, in the same order
#pragma unroll 1
    for (int c = 0; c < B; ++c) {
      const int pivot = B + c;  // the thread that has the row
      float* sums = part + (c & 1) * (WARPS + 1) * B;
      float d[B] = {};  // products of the column below the pivot with all columns
#pragma unroll
      for (int k = 0; k < EACH; ++k) {
        const float below = k > 0 || tid > pivot ? x[k][0] : 0.f;
        if (s + k * THREADS < n) {
#pragma unroll
          for (int j = 0; j < B; ++j) d[j] = fmaf(below, x[k][j], d[j]);
        }
      }
      const float folded = fold(d, lane);
      if ((lane & 1) == 0) sums[warp * B + (lane >> 1)] = folded;
      if (tid == pivot) {
#pragma unroll
        for (int j = 0; j < B; ++j) sums[WARPS * B + j] = x[0][j];
      }
      __syncthreads();
      float product = 0.f;
#pragma unroll
      for (int k = 0; k < WARPS; ++k) product += sums[k * B + own];
      const float beside = sums[WARPS * B + own];
      const Reflection h = reflection(__shfl_sync(FULL, beside, 0), __shfl_sync(FULL, product, 0));
      product = fmaf(h.scale, product, beside);  // of v with column `own`
      const float weight = own + c < B ? h.tau * product : 0.f;
      if (tid >= B && tid <= pivot && s + tid < n)
        band[(s + c) * (B + 1) + tid - c] = tid == pivot ? h.off : x[0][0];
      if (warp == WARPS - 1) {  // T <- (T, -tau T V'v; 0, tau)
        float along = 0.f;
#pragma unroll
        for (int j = 1; j < B; ++j) along = fmaf(t[j], __shfl_sync(FULL, product, j), along);
#pragma unroll
        for (int j = 1; j < B; ++j) t[j - 1] = t[j];
        t[B - 1] = own == c ? h.tau : -h.tau * along;
      }
      float w[B];
#pragma unroll
      for (int j = 1; j < B; ++j) w[j] = __shfl_sync(FULL, weight, j);
#pragma unroll
      for (int k = 0; k < EACH; ++k) {
        if (s + k * THREADS < n) {
          const float at_pivot = tid == pivot && h.tau != 0.f ? 1.f : 0.f;
          const float v = k > 0 || tid > pivot ? x[k][0] * h.scale : at_pivot;
#pragma unroll
          for (int j = 1; j < B; ++j) x[k][j - 1] = fmaf(-v, w[j], x[k][j]);
          x[k][B - 1] = v;
        }
      }
    }
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
      const int i = s + tid + k * THREADS;
      if (i < ld) put_split(Z, i, x[k], UP);
    }
    if (warp == WARPS - 1 && lane < B) {
#pragma unroll
      for (int j = 0; j < B; ++j) T[lane * B + j] = t[j];
    }
    __syncthreads();
    // a strip of 16 rows for every warp, then the next; X goes to where the panel was in the matrix
    float* sums = V;
    float* kept = M + (size_t)s * ld;
    for (int i = first + warp * 16; i < ld; i += WARPS * 16) {
      if (s > B) strip<true, false>(M, V, Y, Z, kept, scale, i, first, n, ld);
      else if (s > 0) strip<true, true>(M, V, Y, Z, kept, scale, i, first, n, ld);
      else strip<false, true>(M, V, Y, Z, kept, scale, i, first, n, ld);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
      const int i = tid + k * THREADS;
#pragma unroll
      for (int c = 0; c < B; ++c) x[k][c] = 0.f;
      if (first + i < ld) {
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const float4 a = *(const float4*)(kept + i * B + 4 * q);
          x[k][4 * q] = a.x, x[k][4 * q + 1] = a.y, x[k][4 * q + 2] = a.z, x[k][4 * q + 3] = a.w;
        }
        put(sums, i, x[k]);
      }
    }
    __syncthreads();
    // S = Z'X, 4 x 4 entries a thread
    float e[4][4] = {};
    const int down = tid & 3, right = tid >> 2 & 3;
#pragma unroll 4
    for (int i = tid >> 4; i < n - first; i += THREADS / 16) {
      const float4 z = quarter(Z, first + i, down), w = *four(sums, i, right);
      const float zs[4] = {z.x, z.y, z.z, z.w}, ws[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int a = 0; a < 4; ++a)
#pragma unroll
        for (int b = 0; b < 4; ++b) e[a][b] = fmaf(zs[a], ws[b], e[a][b]);
    }
#pragma unroll
    for (int a = 0; a < 4; ++a)
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        e[a][b] += __shfl_xor_sync(FULL, e[a][b], 16);
        if (lane < 16) part[(warp * B + 4 * down + a) * B + 4 * right + b] = e[a][b];
      }
    __syncthreads();
    for (int k = tid; k < B * B; k += THREADS) {
      float sum = 0.f;
#pragma unroll
      for (int w = 0; w < WARPS; ++w) sum += part[w * B * B + k];
      S[k] = sum / UP;
    }
    __syncthreads();
    for (int k = tid; k < B * B; k += THREADS) {  // N = -T'S / 2
      float sum = 0.f;
#pragma unroll
      for (int a = 0; a < B; ++a) sum = fmaf(T[a * B + k / B], S[a * B + k % B], sum);
      N[k] = -0.5f / UP * sum;
    }
    __syncthreads();
    // Y = (X + Z N) T
    add_product<true>(Z, N, first, ld, x);
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
      const int i = first + tid + k * THREADS;
      if (i < ld) put(Y, i, x[k]);
#pragma unroll
      for (int c = 0; c < B; ++c) x[k][c] = 0.f;
    }
    add_product<false>(Y, T, first, ld, x);
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
      const int i = first + tid + k * THREADS;
      if (i < ld) put_split(Y, i, x[k], 1.f);
    }
    float* const free = V;
    V = Z;
    Z = free;
    __syncthreads();
  }
}
"""

CHASE = r"""
// entry (i, j) of the lower triangle, i - j < 2 B, is at j * DOWN + i
#define DOWN (2 * B + 1)

// bands to tridiagonal form
extern "C" __global__ void __launch_bounds__(CHASE_THREADS, CHASE_BLOCKS)
chase(const float* band, float* diagonal, float* beside, int n) {
  extern __shared__ __align__(16) float shared[];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, warps = blockDim.x >> 5;
  const int l = lane & 15;
  band += (size_t)blockIdx.x * n * (B + 1);
  diagonal += (size_t)blockIdx.x * n;
  beside += (size_t)blockIdx.x * n;
  for (int i = tid; i < (DOWN + 1) * max(n + B, 3 * B); i += blockDim.x) shared[i] = 0.f;
  __syncthreads();
  for (int i = tid; i < n * (B + 1); i += blockDim.x)
    shared[i / (B + 1) * (DOWN + 1) + i % (B + 1)] = band[i];
  __syncthreads();
  // Each half of a warp has a sweep, then the one `together` later: column s, its step k in round
  // 2 s + k. The two of a warp are eight apart if possible, which avoids bank conflicts.
  const int together = 2 * warps;
  int s = warp + (lane >> 4) * warps;
  if (warps % 8 == 0) s = (warp & ~7) * 2 + (warp & 7) + (lane >> 4) * 8;
  for (int round = 0; round <= 2 * (n - 3); ++round) {
    if (round >= 2 * (s + together)) s += together;
    // the reflection is of rows top to top + B - 1
    const int k = round - 2 * s, top = s + k * B + 1;
    const bool active = k >= 0 && top + 1 < n;
    const bool some = __any_sync(FULL, active);
    const int at = active ? top : B;
    float v[B], tau = 0.f, mine = 0.f;
    if (some) {
      const int column = k == 0 ? at - 1 : at - B;
      float square = 0.f, more = 0.f;  // chains of half the length
      const float* from = shared + column * DOWN + at;
#pragma unroll
      for (int i = 0; i < B; ++i) v[i] = from[i];
      mine = from[l];
#pragma unroll
      for (int i = 2; i < B; i += 2) {
        square = fmaf(v[i], v[i], square);
        more = fmaf(v[i + 1], v[i + 1], more);
      }
      const Reflection h = reflection(v[0], fmaf(v[1], v[1], square + more));
      tau = h.tau;
      v[0] = 1.f;
#pragma unroll
      for (int i = 1; i < B; ++i) v[i] *= h.scale;
      mine = l == 0 ? 1.f : mine * h.scale;
      // from the left: this column, and the others of the block that the last step filled
      float* f = shared + (k == 0 ? column : column + l) * DOWN + at;
      const bool changed = active && (k > 0 || l == 0);
      float x[B], along = 0.f, other = 0.f;
#pragma unroll
      for (int i = 0; i < B; ++i) x[i] = f[i];
#pragma unroll
      for (int i = 0; i < B; i += 2) {
        along = fmaf(x[i], v[i], along);
        other = fmaf(x[i + 1], v[i + 1], other);
      }
      along = tau * (along + other);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < B; ++i) {
        const float by = l == 0 ? (i == 0 ? h.off : 0.f) : fmaf(-along, v[i], x[i]);
        if (changed) f[i] = by;
      }
    }
    __syncthreads();
    if (some) {
      // from both sides: the block on the diagonal; from the right: the one below, which becomes
      // full. Lane l has row l of both.
      float* d = shared + at * (DOWN + 1);
      float* f = d + B + l;
      float x[B], y[B], along = 0.f, below = 0.f;
#pragma unroll
      for (int j = 0; j < B; ++j) x[j] = d[(DOWN - 1) * min(l, j) + l + j];
#pragma unroll
      for (int j = 0; j < B; ++j) y[j] = f[j * DOWN];
#pragma unroll
      for (int j = 0; j < B; ++j) along = fmaf(x[j], v[j], along), below = fmaf(y[j], v[j], below);
      float all = mine * along;
#pragma unroll
      for (int bit = 8; bit > 0; bit >>= 1) all += __shfl_xor_sync(FULL, all, bit);
      below *= tau;
#pragma unroll
      for (int j = 0; j < B; ++j)
        if (active) f[j * DOWN] = fmaf(-below, v[j], y[j]);
      const float w = tau * fmaf(-0.5f * tau * all, mine, along);
#pragma unroll
      for (int j = 0; j < B; ++j) {
        const float other = __shfl_sync(FULL, w, j, 16);
        if (active && j <= l) d[j * DOWN + l] = x[j] - fmaf(mine, other, w * v[j]);
      }
    }
    __syncthreads();
  }
  for (int i = tid; i < n; i += blockDim.x) {
    diagonal[i] = shared[i * (DOWN + 1)];
    beside[i] = shared[i * (DOWN + 1) + 1];
  }
}
"""
