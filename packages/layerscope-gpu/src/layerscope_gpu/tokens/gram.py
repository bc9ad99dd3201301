"""All measures of a prompt's Gram matrix, with the sink token kept and dropped, in one kernel with
a thread block per prompt.

The kernel computes both prepared matrices (re-centered, rows scaled to length 1), both mean angles
between successive differences, and the number of differences of length zero. It gives the same as
`layerscope.metrics.tokens`, which explains the steps, with some 60 small operations fewer per
layer, and reads the matrices twice instead of five times.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from layerscope_gpu.cuda import WARP_SUM, launch, shared_memory, tried_once
from layerscope_gpu.tokens.facts import HALF_CODES, TokenFacts, far_token

_BYTES_PER_TOKEN = 32  # of shared memory
_OTHER_BYTES = 2048
_THREADS = 256
_MANY_THREADS = 1024  # for large matrices, of which only a few are in a batch
_LARGE = 192

SOURCE = (
    WARP_SUM
    + r"""
// gram: n x n, rows centered on the mean without the sink, padding zero; norms: of the states;
// mask: 1 for real tokens; sink: the largest token
extern "C" __global__ void __launch_bounds__(1024)
token_gram(const float* gram, const double* norms, const unsigned char* mask, const long long* sink,
           float* keep, float* drop, double* bends, double* flat, int prompts, int n, int masked,
           int unit, int absolute, int half, int wanted) {
  extern __shared__ __align__(16) double shared[];
  double* noise = shared;                  // n: a state's share of a difference that counts as zero
  float* diagonal = (float*)(noise + n);   // n
  float* shift = diagonal + n;             // n: row means, then what re-centering subtracts
  float* scale = shift + n;                // 2 n: with the sink, without it
  int* kept = (int*)(scale + 2 * n);       // 2 n: the real tokens, with the sink, without it
  __shared__ float part[64];
  __shared__ double angle[64];
  __shared__ int counts[2], terms[96];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, threads = blockDim.x;
  const int warps = threads >> 5;
  const float* g = gram + (size_t)blockIdx.x * n * n;
  norms += (size_t)blockIdx.x * n;
  mask += (size_t)blockIdx.x * n;
  const int out = (int)sink[blockIdx.x];
  // read four numbers of a row at a time
  const bool wide = n % 4 == 0 && ((size_t)gram | (size_t)keep | (size_t)drop) % 16 == 0;
  const float eps = 1.1920929e-7f;  // this, 1e-14 and 45: see layerscope.metrics.tokens
  // eps of the states' type
  const double stored = half == 1 ? 9.765625e-4 : half == 2 ? 7.8125e-3 : 1.1920928955078125e-7;

  for (int i = warp; i < n; i += warps) {
    float sum = 0.f;
    if (wide) {
      for (int k = lane * 4; k < n; k += 128) {
        const float4 x = *(const float4*)(g + (size_t)i * n + k);
        sum += (x.x + x.y) + (x.z + x.w);
      }
    } else {
      for (int k = lane; k < n; k += 32) sum += g[(size_t)i * n + k];
    }
    sum = warp_sum(sum);
    if (lane == 0) shift[i] = sum;
  }
  float size = 0.f;
  for (int i = tid; i < n; i += threads) {
    diagonal[i] = g[(size_t)i * n + i];
    size += sqrtf(fmaxf(diagonal[i], 0.f));
    noise[i] = fmax(1e-14 * norms[i] * norms[i], (double)(45.f * eps * diagonal[i]));
    int before = masked ? 0 : i;
    for (int k = 0; masked && k < i; ++k) before += mask[k];
    if (!masked || mask[i]) {
      kept[before] = i;
      if (i != out) kept[n + before - ((!masked || mask[out]) && out < i)] = i;
    }
    if (i == n - 1) {
      counts[0] = before + (!masked || mask[i]);
      counts[1] = counts[0] - (!masked || mask[out]);
    }
  }
  size = warp_sum(size);
  if (lane == 0) part[warp] = size;
  __syncthreads();
  const int count = max(counts[0], 1);
  size = 0.f;
  for (int i = 0; i < warps; ++i) size += part[i];
  float total = 0.f;
  for (int i = tid; i < n; i += threads) total += shift[i] / count;
  total = warp_sum(total);
  if (lane == 0) part[32 + warp] = total;
  __syncthreads();
  total = 0.f;
  for (int i = 0; i < warps; ++i) total += part[32 + i];
  for (int i = tid; i < n; i += threads) {
    const bool real = !masked || mask[i];
    const float off = shift[i] / count - total / (2 * count);
    const float floor = (float)(norms[i] * stored);
    const float around = sqrtf(45.f * eps) * (sqrtf(fmaxf(diagonal[i], 0.f)) + size / count);
    const float with = sqrtf(fmaxf((diagonal[i] - off) - off, 0.f));
    const float without = sqrtf(fmaxf(diagonal[i], 0.f));
    const bool there = real && with > fmaxf(floor, around);
    const bool left = real && i != out && without > floor;
    shift[i] = off;
    scale[i] = there ? (unit ? 1.f / with : 1.f) : 0.f;
    scale[n + i] = left ? (unit ? 1.f / without : 1.f) : 0.f;
  }
  __syncthreads();

  // angles between successive differences, with the sink and without
  for (int way = 0; way < 2; ++way) {
    const int* at = kept + way * n;
    double sum = 0.;
    int used = 0, still = 0;
    for (int k = tid; k + 2 < counts[way]; k += threads) {
      const int a = at[k], b = at[k + 1], c = at[k + 2];
      const float ab = g[(size_t)a * n + b], bc = g[(size_t)b * n + c], ac = g[(size_t)a * n + c];
      const float first = diagonal[b] + diagonal[a] - 2.f * ab;
      const float second = diagonal[c] + diagonal[b] - 2.f * bc;
      const float dot = bc - diagonal[b] - ac + ab;
      if ((double)first > noise[a] + noise[b] && (double)second > noise[b] + noise[c]) {
        double cosine = (double)dot / sqrt(fmax((double)first * (double)second, 1e-300));
        if (absolute) cosine = fabs(cosine);
        sum += acos(fmin(fmax(cosine, -1.), 1.));
        ++used;
      } else {
        ++still;
      }
    }
    sum = warp_sum(sum);
    used = warp_sum(used);
    still = warp_sum(still);
    if (lane == 0) {
      angle[way * 32 + warp] = sum;
      terms[way * 32 + warp] = used;
      if (way == 0) terms[64 + warp] = still;
    }
  }
  __syncthreads();
  if (tid < 2) {
    double sum = 0.;
    int used = 0, still = 0;
    for (int i = 0; i < warps; ++i) {
      sum += angle[tid * 32 + i];
      used += terms[tid * 32 + i];
      still += terms[64 + i];
    }
    const double none = (double)__int_as_float(0x7fffffff);
    bends[(size_t)tid * prompts + blockIdx.x] = used > 0 ? sum / used : none;
    if (tid == 0) flat[blockIdx.x] = (double)still;
  }
  if (!wanted) return;
  for (int i = warp; i < n; i += warps) {
    const float o = shift[i], s = scale[i], d = scale[n + i];
    const size_t row = ((size_t)blockIdx.x * n + i) * n;
    for (int k = wide ? lane * 4 : lane; k < n; k += wide ? 128 : 32) {
      __align__(16) float x[4], with[4], left[4];
      const int count = wide ? 4 : 1;
      if (wide) *(float4*)x = *(const float4*)(g + (size_t)i * n + k);
      else x[0] = g[(size_t)i * n + k];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (c >= count) break;
        const float by = scale[k + c], without = scale[n + k + c];
        with[c] = s == 0.f || by == 0.f ? 0.f : ((x[c] - o) - shift[k + c]) * s * by;
        left[c] = d == 0.f || without == 0.f ? 0.f : x[c] * d * without;
      }
      if (wide) {
        *(float4*)(keep + row + k) = *(float4*)with;
        *(float4*)(drop + row + k) = *(float4*)left;
      }
      else keep[row + k] = with[0], drop[row + k] = left[0];
    }
  }
}
"""
)


class GramMeasures(NamedTuple):
    """Prepared matrices by sink (B, n, n), if any; curvatures (2, B); zero differences (B,)."""

    matrices: dict[str, Tensor]
    curvature: Tensor
    flat: Tensor


def measures_grams(device: torch.device, tokens: int) -> bool:
    """Return True if the kernel works on a GPU for prompts of this many tokens."""
    index = device.index or 0
    return _BYTES_PER_TOKEN * tokens + _OTHER_BYTES <= shared_memory(index) and usable(index)


def measure_gram(
    gram: Tensor, facts: TokenFacts, unit: bool, absolute: bool, out: tuple[Tensor, Tensor] | None
) -> GramMeasures:
    """Return all measures from Gram matrices (B, n, n) of centered states.

    Prepared matrices are written to `out` if given. `unit` scales rows to length 1. `absolute` uses
    angles of |cos| instead of cos.
    """
    norms, mask, sink, dtype = facts
    count, n = gram.shape[:2]
    bends = gram.new_empty(2, count, dtype=torch.float64)
    flat = gram.new_empty(count, dtype=torch.float64)
    real = norms if mask is None else mask.contiguous()
    tensors = [gram, norms.contiguous(), real, sink.contiguous(), *(out or (gram, gram))]
    flags = [mask is not None, unit, absolute, HALF_CODES.get(dtype, 0), out is not None]
    threads = _THREADS if n <= _LARGE else _MANY_THREADS
    arguments: list[Tensor | int] = [*tensors, bends, flat, count, n, *map(int, flags)]
    launch(SOURCE, "token_gram", count, threads, _BYTES_PER_TOKEN * n, arguments)
    return GramMeasures({} if out is None else {"keep": out[0], "drop": out[1]}, bends, flat)


@tried_once
def usable(index: int) -> bool:
    """Return True if the kernel gives a known answer."""
    rows, facts = far_token(torch.device("cuda", index))
    # without a matrix product, which may be rounded to TF32
    gram = (rows.unsqueeze(1) * rows).sum(-1).unsqueeze(0)
    out = torch.empty_like(gram), torch.empty_like(gram)
    measured = measure_gram(gram, facts, True, False, out)
    unit = torch.nn.functional.normalize(rows[:4], dim=-1)
    cosines = (unit.unsqueeze(1) * unit).sum(-1)
    return (
        abs(float(measured.curvature[1, 0]) - math.pi / 2) < 1e-6
        and not measured.flat.any()
        and torch.allclose(out[1][0, :4, :4], cosines, atol=1e-6)
    )
