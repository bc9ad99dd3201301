"""Token measures of prompts with more tokens than dimensions, from two D×D products each instead of
T×T Gram matrices.

One kernel, with a warp per token, prepares a prompt's centered rows for these products with the
sink token kept and dropped, and computes the angles between differences of neighbors (`gram.py`
serves shorter prompts). Differences and lengths are summed from the rows themselves, not from
products of rows, so that equal states have a difference of exactly zero.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from layerscope_gpu.cuda import HALVES, WARP_SUM, launch, tried_once
from layerscope_gpu.tokens.facts import HALF_CODES, TokenFacts, far_token

_THREADS = 256  # eight neighbors in a block, so that most rows are read from memory once
_STILL = -1.0  # instead of an angle: two of the three tokens are equal

SOURCE = (
    HALVES
    + WARP_SUM
    + r"""
#define STILL -1.
#define NONE -2.  // fewer than three tokens from here

// round to eleven bits, which TF32 keeps: a product in TF32 would truncate the others, which has
// twice the error
__device__ __forceinline__ float eleven_bits(float x) {
  const unsigned int u = __float_as_uint(x);
  return x == x ? __uint_as_float((u + 0xfffu + ((u >> 13) & 1u)) & 0xffffe000u) : x;
}

struct Sums { double own, full, first, second, dot; };

// the next token that counts, or the number of tokens
__device__ __forceinline__ int next_of(int i, int tokens, const unsigned char* real, int masked,
                                       int without) {
  do ++i; while (i < tokens && ((masked && !real[i]) || i == without));
  return min(i, tokens);
}

// a warp computes the squared lengths of x, x - share * far, y - x and z - y, and the product of
// the last two
__device__ Sums sums_of(const float* x, const float* y, const float* z, const float* far,
                        float share, int width) {
  float own = 0.f, full = 0.f, first = 0.f, second = 0.f, dot = 0.f;
#pragma unroll 4
  for (int k = threadIdx.x & 31; k < width; k += 32) {
    const float a = x[k], b = y[k], p = b - a, q = z[k] - b, r = a - share * far[k];
    own += a * a, full += r * r, first += p * p, second += q * q, dot += p * q;
  }
  Sums found;
  found.own = warp_sum((double)own), found.full = warp_sum((double)full);
  found.first = warp_sum((double)first);
  found.second = warp_sum((double)second);
  found.dot = warp_sum((double)dot);
  return found;
}

// centered: tokens x width of each prompt, minus the mean without the sink, padding zero; norms: of
// the states; mask: 1 for real tokens; lengths: number of real tokens; sink: the largest token
extern "C" __global__ void __launch_bounds__(256)
token_rows(const float* __restrict__ centered, const double* norms, const unsigned char* mask,
           const long long* lengths, const long long* sink, float* __restrict__ keep,
           float* __restrict__ drop, double* angles, int prompts, int tokens, int width, int masked,
           int unit, int absolute, int half, int wanted, int narrow) {
  const int lane = threadIdx.x & 31, all = prompts * tokens;
  const int token = blockIdx.x * 8 + (threadIdx.x >> 5);
  if (token >= all) return;
  const int text = token / tokens, i = token % tokens, out = (int)sink[text];
  const float* rows = centered + (size_t)text * tokens * width;
  const float *x = rows + (size_t)i * width, *far = rows + (size_t)out * width;
  const unsigned char* real = mask + (size_t)text * tokens;
  const bool there = !masked || real[i];
  // the other rows sum to zero, so the mean of all rows is a share of the sink's
  const float share = 1.f / max(masked ? (int)lengths[text] : tokens, 1);
  // eps of the states' type
  const double stored = half == 1 ? 9.765625e-4 : half == 2 ? 7.8125e-3 : 1.1920928955078125e-7;
  const size_t start = (size_t)token * width;
  norms += (size_t)text * tokens;

  if (!there) {
    if (lane < 2) angles[(size_t)lane * all + token] = NONE;
    for (int k = lane; wanted && k < width; k += 32) {
      if (narrow) ((u16*)keep)[start + k] = ((u16*)drop)[start + k] = 0;
      else keep[start + k] = drop[start + k] = 0.f;
    }
    return;
  }
  Sums found;
  double whole = NONE, rest = NONE;  // angles with the sink, without it
  int before = -1, behind = -1;      // the two tokens that followed, with the sink
  for (int way = 0; way < 2; ++way) {
    const int without = way ? out : -1;
    const int b = next_of(i, tokens, real, masked, without);
    const int c = next_of(b, tokens, real, masked, without);
    const bool three = i != without && c < tokens;
    if (way && !three) break;
    if (way && b == before && c == behind) {
      rest = whole;
      break;
    }
    found = sums_of(x, three ? x + (size_t)(b - i) * width : x,
                    three ? x + (size_t)(c - i) * width : x, far, share, width);
    before = b, behind = c;
    if (!three) continue;
    double angle = STILL;
    const double u = 1e-14 * norms[i] * norms[i], v = 1e-14 * norms[b] * norms[b];
    const double w = 1e-14 * norms[c] * norms[c];
    if (found.first > u + v && found.second > v + w) {  // 1e-14: see layerscope.metrics.tokens
      double cosine = found.dot / sqrt(fmax(found.first * found.second, 1e-300));
      if (absolute) cosine = fabs(cosine);
      angle = acos(fmin(fmax(cosine, -1.), 1.));
    }
    (way ? rest : whole) = angle;
  }
  if (lane < 2) angles[(size_t)lane * all + token] = lane ? rest : whole;
  if (!wanted) return;

  const double full = sqrt(found.full), own = sqrt(found.own), floor = norms[i] * stored;
  // a row that equals the mean of all has the rounding error of the mean: 45 units, as in
  // layerscope.metrics.tokens
  const bool kept = full > fmax(floor, 45 * 1.1920928955078125e-7 * own);
  const bool left = i != out && own > floor;
  const float s = kept ? (unit ? (float)(1. / full) : 1.f) : 0.f;
  const float d = left ? (unit ? (float)(1. / own) : 1.f) : 0.f;
#pragma unroll 4
  for (int k = lane; k < width; k += 32) {
    const float a = x[k];
    const float with = kept ? (a - share * far[k]) * s : 0.f;
    const float without = left ? a * d : 0.f;
    if (narrow) {
      ((u16*)keep)[start + k] = narrowed(with);
      ((u16*)drop)[start + k] = narrowed(without);
    } else {
      keep[start + k] = half ? eleven_bits(with) : with;
      drop[start + k] = half ? eleven_bits(without) : without;
    }
  }
}
"""
)


class RowMeasures(NamedTuple):
    """Prepared rows by sink (B, T, D), if any; curvatures (2, B); zero differences (B,)."""

    rows: dict[str, Tensor]
    curvature: Tensor
    flat: Tensor


def measures_rows(device: torch.device) -> bool:
    """Return True if the kernel works on a GPU."""
    return usable(device.index or 0)


def measure_rows(
    centered: Tensor, facts: TokenFacts, unit: bool, absolute: bool, dtype: torch.dtype | None
) -> RowMeasures:
    """Return all measures from rows (B, T, D), float32, minus their mean without the sink, padding
    zero.

    `unit` scales rows to length 1. `absolute` uses angles of |cos| instead of cos. Prepared rows
    have the given dtype, float16 or float32; None prepares none. Those of half-precision states
    have eleven bits either way, as many as a product in TF32 keeps.
    """
    norms, mask, sink, state_dtype = facts
    texts, tokens, width = centered.shape
    angles = norms.new_empty(2, texts, tokens, dtype=torch.float64)
    rows = {}
    if dtype is not None:
        rows = {name: torch.empty_like(centered, dtype=dtype) for name in ("keep", "drop")}
    padding = [sink, sink] if mask is None else [mask.contiguous(), mask.sum(-1)]
    tensors = [centered, norms.contiguous(), *padding, sink.contiguous()]
    outputs = [*(rows.values() or (centered, centered)), angles]
    flags = [mask is not None, unit, absolute, HALF_CODES.get(state_dtype, 0), dtype is not None]
    sizes = [texts, tokens, width, *map(int, flags), int(dtype == torch.float16)]
    blocks = -(-texts * tokens // (_THREADS // 32))
    launch(SOURCE, "token_rows", blocks, _THREADS, 0, [*tensors, *outputs, *sizes])
    has_angle = angles >= 0
    count = has_angle.sum(-1)
    mean = torch.where(has_angle, angles, 0.0).sum(-1) / count
    curvature = torch.where(count > 0, mean, torch.nan)
    return RowMeasures(rows, curvature, (angles[0] == _STILL).sum(-1))


@tried_once
def usable(index: int) -> bool:
    """Return True if the kernel gives a known answer."""
    rows, facts = far_token(torch.device("cuda", index))
    expected = {
        "keep": rows - rows.mean(0),
        "drop": torch.cat([rows[:4], torch.zeros_like(rows[4:])]),
    }
    for dtype, close in ((torch.float32, 1e-6), (torch.float16, 1e-3)):
        measured = measure_rows(rows.unsqueeze(0), facts, True, False, dtype)
        if abs(float(measured.curvature[1, 0]) - math.pi / 2) > 1e-6 or measured.flat.any():
            return False
        for name, prepared in measured.rows.items():
            unit = torch.nn.functional.normalize(expected[name], dim=-1)
            if not torch.allclose(prepared[0].float(), unit, atol=close):
                return False
    return True
