"""Eigenvalues of many float32 matrices of at most 192 rows on a GPU, by a kernel that keeps each
matrix in registers.

The kernel reads the matrices once and writes only eigenvalues: one thread block per matrix scales
it, reduces it to tridiagonal form and bisects. It is used where NVRTC can compile it and a first
solve is right; cuSOLVER is used otherwise.

The threads of a block form a grid of ROWS x 8. Entry (i, j) belongs to thread (i mod ROWS, j mod
8), so that all threads have the same amount of work at any time. Registers are indexed at compile
time only, with one piece of code per stage of PERIOD columns. A column costs two barriers. Its
owners write it to shared memory with its sum of squares. Every thread multiplies its entries of the
matrix by it, and the eight threads of a row add up and write the product. Then every thread updates
its entries, and the owners of the next column write that.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from torch import Tensor

from layerscope_gpu.cuda import define, launch
from layerscope_gpu.solvers.pieces import BISECTION, find_problem, halvings


class RegisterVariant(NamedTuple):
    """The macros of the kernel: threads per matrix (8 across), tiles of registers per thread,
    blocks per multiprocessor."""

    threads: int
    tiles: int
    min_blocks: int

    @property
    def largest(self) -> int:
        """Return the rows of the largest matrix that it supports."""
        return self.tiles * max(8, self.threads // 8)

    @property
    def source(self) -> str:
        """Return the source with its macros set."""
        names = ("THREADS", "TILES", "MIN_BLOCKS")
        return define(dict(zip(names, self, strict=True))) + SOURCE

    @property
    def steps(self) -> int:
        """Return the number of halvings of an interval, after a count at as many points as there
        are threads, or eigenvalues if these are more."""
        return halvings(max(self.threads, self.largest))


# As many warps as registers allow: with tiles of 128 entries, three for each of a multiprocessor's
# four schedulers.
VARIANTS = (
    RegisterVariant(32, 4, 20),
    RegisterVariant(32, 8, 12),
    RegisterVariant(128, 6, 4),
    RegisterVariant(128, 8, 3),
    RegisterVariant(256, 6, 1),
)
LARGEST = VARIANTS[-1].largest


def best_variant(n: int) -> RegisterVariant:
    """Return the variant for matrices of n rows."""
    return next(candidate for candidate in VARIANTS if n <= candidate.largest)


def usable(index: int, n: int) -> str | None:
    """Return None if the kernel works on a device for matrices of n rows, else the reason."""
    if n > LARGEST:
        return f"matrices have {n} rows; the kernel supports at most {LARGEST}"
    return _trial_problem(index, best_variant(n))


@cache
def _trial_problem(index: int, variant: RegisterVariant) -> str | None:
    """Compile the kernel and try it on matrices with a known answer, once."""
    return find_problem(
        lambda matrices: eigvalsh(matrices, variant=variant), variant.largest - 3, index
    )


def eigvalsh(matrices: Tensor, variant: RegisterVariant | None = None) -> Tensor:
    """Return eigenvalues, ascending, of symmetric CUDA matrices (batch, n, n), float32.

    They are NaN where a matrix has a NaN. The matrices are not changed.
    """
    count, n = matrices.shape[:2]
    variant = variant or best_variant(n)
    out = matrices.new_empty(count, n)
    launch(
        variant.source,
        "small_eigenvalues",
        count,
        variant.threads,
        0,
        [matrices.contiguous(), out, n, variant.steps],
    )
    return out


REDUCTION = r"""
// set before this: THREADS, TILES (the largest matrix has TILES x PERIOD rows), MIN_BLOCKS
#define ACROSS 8
#define ROWS (THREADS / ACROSS)
#define PERIOD (ROWS > ACROSS ? ROWS : ACROSS)
#define FEWER (ROWS < ACROSS ? ROWS : ACROSS)
#define GR (PERIOD / ROWS)     // groups of rows a thread has in a period
#define GC (PERIOD / ACROSS)   // groups of columns
#define WARPS (THREADS / 32)
#define LARGEST (TILES * PERIOD)
#define PADDED ((TILES + 3) / 4 * 4)
// a vector in shared memory: the entries of a thread are neighbors, without bank conflicts between
// the eight columns
#define SUB (ROWS < ACROSS ? 16 : PADDED)
#define STRIDE (ROWS < ACROSS ? 36 : GC * PADDED + 4)
#define EACH ((LARGEST + THREADS - 1) / THREADS)  // eigenvalues of a thread
#define POINTS (THREADS * EACH)
#define NEGLIGIBLE 1e-28f      // a column's sum of squares, with entries of order one

#if THREADS == 32
#define MEET() __syncwarp()
#else
#define MEET() __syncthreads()
#endif

struct Shared {
  float x[FEWER * STRIDE];       // the column to eliminate
  float z[FEWER * STRIDE];       // the matrix times its Householder vector
  float squares[(WARPS + 3) / 4 * 4], along[(WARPS + 3) / 4 * 4], part[64];
  float2 both[LARGEST + 16];     // a diagonal entry, and the squared entry beside the one before
  float diagonal[LARGEST], beside[LARGEST];
  int counts[POINTS];
};

__device__ __forceinline__ int place(int l) { return l % FEWER * STRIDE + l / FEWER * SUB; }

__device__ __forceinline__ float total(const float* part) {
  float s = part[0];
#pragma unroll
  for (int i = 1; i < WARPS; ++i) s += part[i];
  return s;
}

// Add up T rows over the eight threads of a row. Each thread gets the sum of one row, or of two if
// T is more than eight, see `summed_row`.
template <int T>
__device__ __forceinline__ void add_up(float (&p)[T], int c) {
  constexpr int whole = T > 8 ? 16 : T > 4 ? 8 : T > 2 ? 4 : T;
  int half = whole / 2;
#pragma unroll
  for (int bit = 4; bit > 0; bit >>= 1, half /= 2) {
    const bool upper = c & bit;
#pragma unroll
    for (int q = 0; q < (half > 0 ? half : 1); ++q) {
      if (half > 0 && q + half < T) {
        const float given = upper ? p[q] : p[q + half], kept = upper ? p[q + half] : p[q];
        p[q] = kept + __shfl_xor_sync(0xffffffffu, given, bit);
      } else {
        p[q] += __shfl_xor_sync(0xffffffffu, p[q], bit);
      }
    }
  }
}

// without the cases for denormal numbers
__device__ __forceinline__ float fast_rsqrt(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float inverse_of(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return fmaf(y, fmaf(-x, y, 1.f), y);
}

template <int T>
__device__ __forceinline__ int summed_row(int c) {
  return T > 8 ? c * 2 : T > 4 ? c : T > 2 ? c >> 1 : T > 1 ? c >> 2 : 0;
}

struct Place { int n, r, c, lane, warp; };

// the owners of column q write its entries below the diagonal to shared memory
template <int S>
__device__ __forceinline__ void publish(const float (&A)[GR][TILES][GC][TILES], Shared& sh,
                                        const Place& at, int q) {
  const int group = q % PERIOD / ACROSS, owner = q % ACROSS;
  float column[GR][PADDED], square = 0.f;
#pragma unroll
  for (int g = 0; g < GR; ++g)
#pragma unroll
    for (int a = 0; a < PADDED; ++a) {
      float x = 0.f;
      if (a >= S && a < TILES) {
        x = A[g][a < TILES ? a : 0][0][S];
#pragma unroll
        for (int h = 1; h < GC; ++h) x = group == h ? A[g][a < TILES ? a : 0][h][S] : x;
        if (a == S) {
          const int i = PERIOD * S + g * ROWS + at.r;
          if (i == q && at.c == owner) sh.diagonal[q] = x;
          x = i > q ? x : 0.f;
        }
        square += x * x;
      }
      column[g][a] = x;
    }
  square += __shfl_xor_sync(0xffffffffu, square, 8);
  square += __shfl_xor_sync(0xffffffffu, square, 16);
  if (at.c == owner) {
#pragma unroll
    for (int g = 0; g < GR; ++g)
#pragma unroll
      for (int a = S / 4 * 4; a < PADDED; a += 4)
        *(float4*)(sh.x + place(g * ROWS + at.r) + a) =
            make_float4(column[g][a], column[g][a + 1], column[g][a + 2], column[g][a + 3]);
    if (at.lane < 8) sh.squares[at.warp] = square;
  }
}

template <int S>
__device__ __forceinline__ void load(const float* from, float (&to)[PADDED]) {
#pragma unroll
  for (int a = S / 4 * 4; a < PADDED; a += 4) {
    const float4 x = *(const float4*)(from + a);
    to[a] = x.x, to[a + 1] = x.y, to[a + 2] = x.z, to[a + 3] = x.w;
  }
}

// Eliminate columns PERIOD S - 1 to PERIOD (S + 1) - 2, whose entries beside the diagonal are in
// rows q = PERIOD S, ...
template <int S>
__device__ __forceinline__ void stage(float (&A)[GR][TILES][GC][TILES], Shared& sh,
                                      const Place& at) {
  if constexpr (S < TILES) {
    constexpr int T = GR * (TILES - S), SUMS = T > 8 ? 2 : 1;
    int slot[SUMS];
#pragma unroll
    for (int o = 0; o < SUMS; ++o) {
      const int t = summed_row<T>(at.c) + o, g = t / (TILES - S);
      slot[o] = t < T ? place(g * ROWS + at.r) + S + t % (TILES - S) : -1;
    }
    const int end = min(PERIOD * (S + 1), at.n);
#pragma unroll 1
    for (int q = S == 0 ? 1 : PERIOD * S; q < end; ++q) {
      MEET();
      const int l = q % PERIOD;
      const float head = sh.x[place(l) + S], square = total(sh.squares);
      const bool skip = !(square > NEGLIGIBLE) || q == at.n - 1;
      const float inverse = skip ? 0.f : fast_rsqrt(square), rough = square * inverse;
      const float norm = fmaf(0.5f * inverse, fmaf(-rough, rough, square), rough);
      const float signed_norm = copysignf(norm, head);
      const float first = head + signed_norm;
      const float length = fmaf(norm, fmaf(2.f, fabsf(head), norm), square);
      const float beta = skip ? 0.f : 2.f * inverse_of(length);
      sh.beside[q - 1] = skip ? head : -signed_norm;  // the same from every thread
      float ur[GR][PADDED], uc[GC][PADDED];
#pragma unroll
      for (int h = 0; h < GC; ++h) {
        load<S>(sh.x + place(h * ACROSS + at.c), uc[h]);
        uc[h][S] = h * ACROSS + at.c == l ? first : uc[h][S];
      }
#pragma unroll
      for (int g = 0; g < GR; ++g) {
        load<S>(sh.x + place(g * ROWS + at.r), ur[g]);
        ur[g][S] = g * ROWS + at.r == l ? first : ur[g][S];
      }
      float p[T], along = 0.f;
#pragma unroll
      for (int g = 0; g < GR; ++g)
#pragma unroll
        for (int a = S; a < TILES; ++a) {
          float s = A[g][a][0][S] * uc[0][S];
#pragma unroll
          for (int k = S; k < TILES; ++k)
#pragma unroll
            for (int h = k == S; h < GC; ++h) s = fmaf(A[g][a][h][k], uc[h][k], s);
          p[g * (TILES - S) + a - S] = s;
          along = fmaf(s, ur[g][a], along);
        }
#pragma unroll
      for (int bit = 16; bit > 0; bit >>= 1) along += __shfl_xor_sync(0xffffffffu, along, bit);
      add_up<T>(p, at.c);
#pragma unroll
      for (int o = 0; o < SUMS; ++o)
        if (slot[o] >= 0) sh.z[slot[o]] = beta * p[o];
      sh.along[at.warp] = along;
      MEET();
      // with z = beta A u: A - u w' - w u' where w = z - beta/2 (u'z) u; the rows take all of u'z
      const float twice = beta * total(sh.along) * beta;
      float zr[GR][PADDED];
#pragma unroll
      for (int g = 0; g < GR; ++g) {
        load<S>(sh.z + place(g * ROWS + at.r), zr[g]);
#pragma unroll
        for (int a = S; a < TILES; ++a) zr[g][a] = fmaf(-twice, ur[g][a], zr[g][a]);
      }
#pragma unroll
      for (int h = 0; h < GC; ++h) {
        float zc[PADDED];
        load<S>(sh.z + place(h * ACROSS + at.c), zc);
#pragma unroll
        for (int k = S; k < TILES; ++k)
#pragma unroll
          for (int g = 0; g < GR; ++g)
#pragma unroll
            for (int a = S; a < TILES; ++a)
              A[g][a][h][k] = fmaf(-zr[g][a], uc[h][k], fmaf(-ur[g][a], zc[k], A[g][a][h][k]));
      }
      publish<S>(A, sh, at, q);
    }
    if (end < at.n) stage<S + 1>(A, sh, at);
  }
}
"""

KERNEL = r"""
// Eigenvalues, ascending, of symmetric matrices (n x n), NaN where an entry is not finite. With no
// steps, only the reduction is computed, for measuring its time.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
small_eigenvalues(const float* __restrict__ matrices, float* __restrict__ out, int n, int steps) {
  __shared__ __align__(16) Shared sh;
  const int tid = threadIdx.x;
  const Place at = {n, tid / ACROSS, tid % ACROSS, tid & 31, tid >> 5};
  const float* from = matrices + (size_t)blockIdx.x * n * n;
  out += (size_t)blockIdx.x * n;
  float A[GR][TILES][GC][TILES];
  unsigned largest = 0u;
#pragma unroll
  for (int g = 0; g < GR; ++g)
#pragma unroll
    for (int a = 0; a < TILES; ++a)
#pragma unroll
      for (int k = 0; k < TILES; ++k)
#pragma unroll
        for (int h = 0; h < GC; ++h) {
          const int i = PERIOD * a + g * ROWS + at.r, j = PERIOD * k + h * ACROSS + at.c;
          A[g][a][h][k] = i < n && j < n ? from[i * n + j] : 0.f;
        }
#pragma unroll
  for (int g = 0; g < GR; ++g)
#pragma unroll
    for (int a = 0; a < TILES; ++a)
#pragma unroll
      for (int k = 0; k < TILES; ++k)
#pragma unroll
        for (int h = 0; h < GC; ++h)
          largest = max(largest, __float_as_uint(A[g][a][h][k]) & 0x7fffffffu);
  for (int bit = 16; bit > 0; bit >>= 1)
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, bit));
  if (at.lane == 0) sh.counts[at.warp] = (int)largest;
  MEET();
  for (int i = 0; i < WARPS; ++i) largest = max(largest, (unsigned)sh.counts[i]);
  if (largest == 0u || largest >= 0x7f800000u) {  // all zero; or infinite, or not a number
    for (int i = tid; i < n; i += THREADS)
      out[i] = largest == 0u ? 0.f : __uint_as_float(0x7fc00000u);
    return;
  }
  // scale by a power of two to entries of order one, whose squares float32 can represent
  const unsigned power = min(max(largest >> 23, 1u), 253u);
  const float by = __uint_as_float(254u - power << 23), size = __uint_as_float(power << 23);
#pragma unroll
  for (int g = 0; g < GR; ++g)
#pragma unroll
    for (int a = 0; a < TILES; ++a)
#pragma unroll
      for (int h = 0; h < GC; ++h)
#pragma unroll
        for (int k = 0; k < TILES; ++k) A[g][a][h][k] *= by;
  publish<0>(A, sh, at, 0);
  stage<0>(A, sh, at);
  MEET();
  if (steps > 0) {
    all_eigenvalues<EACH>(sh.diagonal, sh.beside, n, size, steps, out, THREADS, sh.both, sh.counts,
                          sh.part);
  } else {
    for (int i = tid; i < n; i += THREADS) out[i] = sh.diagonal[i] + sh.beside[i];
  }
}
"""

SOURCE = REDUCTION + BISECTION + KERNEL
