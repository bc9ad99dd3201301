"""Entropies of many float32 matrices on a GPU from determinants of a band, without eigenvalues.

p log p equals a sum of c log(1 + p / z) at sixteen shifts z, of p and of p², to
8.5e-7 (p + 1/1024) for every p in [0, 1]. Summed over a spectrum, the logarithms are those of
det(K / tr K + z) / z^n. So after the first stage of `band.py` neither the second nor bisection is
needed, which saves 7 of the 15 us that eigenvalues of 512 rows take on an H200. The entropy differs
from that of the eigenvalues by at most 8.5e-7 (1 + n / 1024) nats, which is less than the effect of
rounding.

A thread eliminates the columns of a band at one shift, in registers: 16 rows of the triangle below
a column. The shift is added to a pivot only when it is used, so that small eigenvalues lose no
digits to large shifts.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from layerscope_gpu.cuda import launch, shared_memory
from layerscope_gpu.solvers.band import BAND, LARGEST, SMALLEST, BandVariant, best_variant, to_band
from layerscope_gpu.solvers.pieces import SMALLEST_ENTRY, compare_with, known_case, parts

SHIFTS = 16
SMALLEST_SHIFT = 10**-8.2
LARGEST_SHIFT = 2.4
# of z log(1 + p / z), from the smallest shift on, then of p and p². They minimize the largest
# error, as tests/test_determinants.py computes
WEIGHTS = (
    *(
        -5.14847846,
        1.57186714,
        -2.61373223,
        -0.888055661,
        -1.42981498,
        -1.29464704,
        -1.31904442,
        -1.31831597,
        -1.31606586,
    ),
    *(
        -1.31776278,
        -1.31666005,
        -1.31755658,
        -1.31631872,
        -1.32008953,
        -1.29402996,
        -1.55966531,
        2.75592894,
        0.0627719609,
    ),
)


def source(variant: BandVariant) -> str:
    """Return the source of both kernels."""
    return variant.first_stage + DETERMINANTS


def entropy(matrices: Tensor, variant: BandVariant, overwrite: bool = False) -> Tensor:
    """Return −Σ p log p, p = λ / Σλ, of positive semidefinite CUDA matrices (batch, n, n), float32.

    The result is float64, and NaN where Σλ is zero.
    """
    n = matrices.shape[-1]
    out = matrices.new_empty(len(matrices), dtype=torch.float64)
    shifts, weights = _table(matrices.device)
    for batch in parts(matrices, variant.min_blocks, overwrite):
        # the largest of all entries, as there are no negative eigenvalues
        largest = matrices[batch].diagonal(dim1=-2, dim2=-1).amax(-1)
        size = torch.where(largest == 0, 1.0, torch.nan)
        size = torch.where(largest > 0, largest.clamp(min=SMALLEST_ENTRY), size)
        band = to_band(matrices[batch], size, variant, overwrite, source(variant))
        trace = band[..., 0].sum(-1, dtype=torch.float64)
        sums = band.new_ones(len(band), SHIFTS + 2, dtype=torch.float64)
        blocks = -(-len(band) * SHIFTS // 32)
        arguments: list[Tensor | int] = [band, (1 / trace).float(), shifts, sums, n, len(band)]
        launch(source(variant), "log_determinants", blocks, 32, shared(n), arguments)
        out[batch] = torch.where(trace > 0, -(sums @ weights), torch.nan)
    return out


@cache
def _table(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the shifts, float32, and the weights of all terms, float64."""
    shifts = torch.logspace(math.log10(SMALLEST_SHIFT), math.log10(LARGEST_SHIFT), SHIFTS)
    weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    weights[:SHIFTS] *= shifts
    return shifts.to(device), weights.to(device)


def shared(n: int) -> int:
    """Return the bytes of shared memory for the determinants of two matrices of n rows."""
    return 4 * (2 * n * (BAND + 1) + 16)


def usable(index: int, n: int) -> str | None:
    """Return None if the kernels work on a device for matrices of n rows, else the reason."""
    if not SMALLEST <= n <= LARGEST:
        return f"matrices have {n} rows; the kernel supports {SMALLEST} to {LARGEST}"
    variant = best_variant(n)
    if max(variant.shared(n), shared(n)) > shared_memory(index):
        return "its panels do not fit into shared memory"
    return _trial_problem(index, variant)


@cache
def _trial_problem(index: int, variant: BandVariant) -> str | None:
    """Compile the kernels and try them on matrices with a known entropy, once."""
    matrices, eigenvalues = known_case(min(variant.largest, 250))  # eigenvalues from -1 on
    gram = matrices + torch.eye(len(eigenvalues))
    p = (eigenvalues + 1) / (eigenvalues + 1).sum()
    return compare_with(
        lambda matrices: entropy(matrices, variant), gram, -torch.xlogy(p, p).sum(), index
    )


DETERMINANTS = r"""
#define UNSURE 1e-5f  // of the trace: tens of times its rounding, which changes smaller pivots
#define APART 16  // numbers between two bands, so that threads of both can read at once
// Of bands (count x n x (B + 1)) times `by`, in rows of 18: sums of log(1 + pivot / z) at 16 shifts
// z, and last the sum of all squares
extern "C" __global__ void __launch_bounds__(32)
log_determinants(const float* band, const float* by, const float* shifts, double* sums, int n,
                 int count) {
  extern __shared__ __align__(16) float shared[];
  const int which = blockIdx.x * 2 + (threadIdx.x >> 4);
  const int shift = threadIdx.x & 15, all = n * (B + 1);
  const float z = shifts[shift], inverse = 1.f / z;
  for (int one = 0; one < 2; ++one) {
    const int here = min((int)blockIdx.x * 2 + one, count - 1);
    const float* from = band + (size_t)here * all;
    const float scale = by[here];
    float squares = 0.f;
#pragma unroll 8
    for (int i = threadIdx.x; i < all; i += 32) {
      const float x = scale * from[i];
      shared[one * (all + APART) + i] = x;
      squares = fmaf(i % (B + 1) ? 2.f * x : x, x, squares);
    }
    for (int bit = 16; bit > 0; bit >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, bit);
    if (threadIdx.x == 0) sums[here * 18 + 17] = squares;
  }
  __syncwarp();
  const float* own = shared + (threadIdx.x >> 4) * (all + APART);
  float x[B][B];  // rows j to j + 15 from column j on
#pragma unroll
  for (int i = 0; i < B; ++i)
#pragma unroll
    for (int k = 0; k <= i; ++k) x[i][k] = i < n ? own[k * (B + 1) + i - k] : 0.f;
  double sum = 0.;
#pragma unroll 1
  for (int j = 0; j < n; ++j) {
    float row[B + 1], c[B + 1];  // the next row, and the column
    const float* at = own + j * (B + 1) + B;
#pragma unroll
    for (int k = 0; k <= B; ++k) row[k] = j + B < n ? at[k * B] : 0.f;
    float pivot = x[0][0];
    pivot = pivot < 0.f ? 0.f : pivot;  // rounding: no eigenvalue is negative; NaN stays
    sum += (double)log1pf(pivot * inverse);
    float over;
    const float shifted = z + pivot;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(over) : "f"(shifted));
#pragma unroll
    for (int i = 1; i < B; ++i) c[i] = x[i][0];
    c[B] = row[0];
    // bounds that hold without negative eigenvalues; with them, entries would grow without limit
    if (shifted < UNSURE) {
#pragma unroll
      for (int i = 1; i <= B; ++i) {
        const float square = shifted * fmaxf((i < B ? x[i % B][i % B] : row[B]) + z, 0.f);
        float most;
        asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(most) : "f"(square));
        c[i] = fminf(fmaxf(c[i], -most), most);
      }
    }
#pragma unroll
    for (int k = 1; k <= B; ++k) {
      const float weight = -over * c[k];
#pragma unroll
      for (int i = k; i < B; ++i) x[i - 1][k - 1] = fmaf(weight, c[i], x[i][k]);
      x[B - 1][k - 1] = fmaf(weight, c[B], row[k]);
    }
  }
  if (which < count) sums[which * 18 + shift] = sum;
}
"""
