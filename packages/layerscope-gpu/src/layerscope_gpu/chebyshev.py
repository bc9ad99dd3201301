"""Passes over float16 matrices, which read each entry once (of sums over symmetric ones, half of
them).

They serve entropies from traces of Chebyshev polynomials. Each function says whether it did the
work: where NVRTC cannot compile the kernels, a first try is wrong or matrices do not fit, torch's
operators are the caller's way. The source at the end works on matrices (B, m, m), m a multiple of
8, eight entries at a time.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from layerscope_gpu.cuda import HALVES, UnusableError, launch

_THREADS = 256


def narrow(matrices: Tensor, by: Tensor, out: Tensor) -> bool:
    """`out` (B, m, m) = matrices (B, n, n) · by (B,), with zeros around them where m > n; False
    where that was not done."""
    fits = (
        matrices.dtype == torch.float32
        and _ours(out)
        and matrices.is_contiguous()
        and matrices.data_ptr() % 16 == 0
    )
    if fits:
        _narrow(matrices, by, out)
    return fits


def rescale(first: Tensor, second: Tensor, third: Tensor, by: Tensor, square: Tensor) -> bool:
    """first · by → first; second · square + first → second and third; False where that was not
    done. Numbers (B,)."""
    fits = _ours(first)
    if fits:
        _rescale(first, second, third, by, square)
    return fits


def pair_sums(arrays: Tensor) -> Tensor | None:
    """tr(A_i A_j) for all i ≤ j of 1 or 6 symmetric matrices (COUNT, B, m, m): (B, COUNT (COUNT +
    1) / 2), float64; or None."""
    return _pair_sums(arrays) if len(arrays) in (1, 6) and _ours(arrays) else None


def _ours(matrices: Tensor) -> bool:
    """Whether the kernels can take these."""
    if not matrices.is_cuda or matrices.dtype != torch.float16 or matrices.shape[-1] % 8:
        return False
    return (
        matrices.is_contiguous() and matrices.data_ptr() % 16 == 0 and usable(matrices.device.index)
    )


def _blocks(matrices: Tensor) -> int:
    count, m = matrices.shape[0], matrices.shape[-1]
    return count * -(-(m * m // 8) // (_THREADS * EACH))


def _narrow(matrices: Tensor, by: Tensor, out: Tensor) -> None:
    arguments: list[Tensor | int] = [matrices, by.float(), out, matrices.shape[-1], out.shape[-1]]
    launch(SOURCE, "narrow", _blocks(out), _THREADS, 0, arguments)


def _rescale(first: Tensor, second: Tensor, third: Tensor, by: Tensor, square: Tensor) -> None:
    arguments: list[Tensor | int] = [
        first,
        second,
        third,
        by.float(),
        square.float(),
        first.shape[-1],
    ]
    launch(SOURCE, "rescale", _blocks(first), _THREADS, 0, arguments)


def _pair_sums(arrays: Tensor) -> Tensor:
    kinds, count, m = arrays.shape[:3]
    out = torch.empty(
        count, SUMS_BLOCKS, kinds * (kinds + 1) // 2, dtype=torch.float32, device=arrays.device
    )
    launch(
        SOURCE,
        f"sums_of_{kinds}",
        count * SUMS_BLOCKS,
        SUMS_THREADS,
        0,
        [arrays, out, count, m, SUMS_BLOCKS],
    )
    return out.sum(1, dtype=torch.float64)


@cache
def usable(index: int) -> bool:
    """Whether the kernels work on a device: compiled and tried once."""
    try:
        return right(torch.device("cuda", index))
    except (UnusableError, OSError, AttributeError, RuntimeError):
        return False


def right(device: torch.device) -> bool:
    """Whether the kernels give what they should on small matrices."""
    x = torch.linspace(-1.0, 1.0, 3 * 21 * 21, device=device).view(3, 21, 21)
    given, by = x + x.mT, torch.tensor([0.5, 1.0, 0.3], device=device)
    arrays = torch.full((6, 3, 24, 24), torch.nan, dtype=torch.float16, device=device)
    for k in range(6):
        _narrow(given, by / (k + 1), arrays[k])
        known = (given * (by / (k + 1))[:, None, None]).half()
        if (
            not torch.equal(arrays[k, :, :21, :21], known)
            or arrays[k, :, 21:].any()
            or arrays[k, :, :, 21:].any()
        ):
            return False
    first, second, third = arrays[:3].clone()
    _rescale(first, second, third, -by, by.square())
    scaled = -arrays[0].double() * by[:, None, None]
    known = scaled + arrays[1].double() * by.square()[:, None, None]
    found, sums = (first, second, third), _pair_sums(arrays)
    flat = arrays.double().flatten(2).transpose(0, 1)
    i, j = torch.triu_indices(6, 6, device=device)
    return (
        all(
            torch.allclose(a.double(), b, rtol=2e-3, atol=1e-3)
            for a, b in zip(found, (scaled, known, known), strict=True)
        )
        and torch.allclose(sums, (flat @ flat.mT)[:, i, j], rtol=1e-4, atol=1e-4)
        and torch.allclose(
            _pair_sums(arrays[:1]), flat[:, :1].square().sum(-1), rtol=1e-4, atol=1e-4
        )
    )


SUMS_THREADS = 256
SUMS_BLOCKS = 4  # per matrix
EACH = 8  # groups of eight entries a thread, where entries are only rewritten

SOURCE = (
    HALVES
    + r"""
__device__ __forceinline__ void unpack(uint4 p, float* v) {
  const unsigned int words[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    v[2 * k] = widened((u16)(words[k] & 0xffffu), 1);
    v[2 * k + 1] = widened((u16)(words[k] >> 16), 1);
  }
}

__device__ __forceinline__ uint4 packed(const float* v) {
  unsigned int words[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) words[k] = (unsigned int)narrowed(v[2 * k]) | ((unsigned int)narrowed(v[2 * k + 1]) << 16);
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// float32 matrices (n, n) times a number each, as float16 (m, m) with zeros around them
extern "C" __global__ void narrow(const float* given, const float* by, u16* out, int n, int m) {
  const int wide = m / 8, all = m * wide, parts = (all + blockDim.x * 8 - 1) / (blockDim.x * 8);
  const int which = blockIdx.x / parts, start = blockIdx.x % parts * blockDim.x * 8 + threadIdx.x;
  const float scale = by[which];
  given += (size_t)which * n * n;
  out += (size_t)which * m * m;
#pragma unroll 4
  for (int k = 0; k < 8; ++k) {
    const int at = start + k * blockDim.x;
    if (at < all) {
      float v[8];
      if (n == m) {
        const float4 a = *(const float4*)(given + (size_t)at * 8), b = *(const float4*)(given + (size_t)at * 8 + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
      } else {
        const int i = at / wide, j = at % wide * 8;
        for (int c = 0; c < 8; ++c) v[c] = i < n && j + c < n ? given[(size_t)i * n + j + c] : 0.f;
      }
      for (int c = 0; c < 8; ++c) v[c] *= scale;
      *(uint4*)(out + (size_t)at * 8) = packed(v);
    }
  }
}

// first *= by; second = second * square + first, which goes to third as well
extern "C" __global__ void rescale(u16* first, u16* second, u16* third, const float* by, const float* square, int m) {
  const int all = m * (m / 8), parts = (all + blockDim.x * 8 - 1) / (blockDim.x * 8);
  const int which = blockIdx.x / parts, start = blockIdx.x % parts * blockDim.x * 8 + threadIdx.x;
  const float one = by[which], two = square[which];
  const size_t from = (size_t)which * m * m;
#pragma unroll 4
  for (int k = 0; k < 8; ++k) {
    const int at = start + k * blockDim.x;
    if (at < all) {
      const size_t place = from + (size_t)at * 8;
      float x[8], y[8];
      unpack(*(const uint4*)(first + place), x);
      unpack(*(const uint4*)(second + place), y);
      for (int c = 0; c < 8; ++c) {
        x[c] = widened(narrowed(x[c] * one), 1);
        y[c] = y[c] * two + x[c];
      }
      const uint4 sum = packed(y);
      *(uint4*)(first + place) = packed(x);
      *(uint4*)(second + place) = sum;
      *(uint4*)(third + place) = sum;
    }
  }
}

// sums of x_a x_b over the entries of symmetric matrices, for all pairs a <= b of COUNT arrays (B, m, m) that lie one after
// the other. Strips of eight rows are read from the diagonal on: what is right of its 8 x 8 square counts twice.
template <int COUNT>
__device__ __forceinline__ void sums(const u16* arrays, float* out, int many, int m, int parts) {
  const int PAIRS = COUNT * (COUNT + 1) / 2;
  __shared__ float held[8][COUNT * (COUNT + 1) / 2];
  const int which = blockIdx.x / parts, part = blockIdx.x % parts, strips = m / 8;
  const size_t apart = (size_t)many * m * m;
  arrays += (size_t)which * m * m;
  float total[PAIRS];
#pragma unroll
  for (int p = 0; p < PAIRS; ++p) total[p] = 0.f;
  for (int strip = part; strip < strips; strip += parts) {
    const int wide = strips - strip;
    for (int at = threadIdx.x; at < 8 * wide; at += blockDim.x) {
      const int row = at / wide, right = at - row * wide;
      const u16* place = arrays + (size_t)(strip * 8 + row) * m + (strip + right) * 8;
      const float weight = right == 0 ? 1.f : 2.f;
      uint4 loaded[COUNT];
#pragma unroll
      for (int a = 0; a < COUNT; ++a) loaded[a] = *(const uint4*)(place + a * apart);
#pragma unroll
      for (int word = 0; word < 4; ++word) {
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
          float x[COUNT];
#pragma unroll
          for (int a = 0; a < COUNT; ++a) {
            const unsigned int w = word == 0 ? loaded[a].x : word == 1 ? loaded[a].y : word == 2 ? loaded[a].z : loaded[a].w;
            x[a] = widened((u16)(upper ? w >> 16 : w & 0xffffu), 1);
          }
          int p = 0;
#pragma unroll
          for (int a = 0; a < COUNT; ++a) {
            const float twice = weight * x[a];
#pragma unroll
            for (int b = a; b < COUNT; ++b) total[p++] += twice * x[b];
          }
        }
      }
    }
  }
#pragma unroll
  for (int p = 0; p < PAIRS; ++p) {
    for (int away = 16; away > 0; away /= 2) total[p] += __shfl_xor_sync(0xffffffffu, total[p], away);
    if (threadIdx.x % 32 == 0) held[threadIdx.x / 32][p] = total[p];
  }
  __syncthreads();
  if (threadIdx.x < PAIRS) {
    float sum = 0.f;
    for (int warp = 0; warp < blockDim.x / 32; ++warp) sum += held[warp][threadIdx.x];
    out[(size_t)blockIdx.x * PAIRS + threadIdx.x] = sum;
  }
}

extern "C" __global__ void sums_of_1(const u16* arrays, float* out, int many, int m, int parts) {
  sums<1>(arrays, out, many, m, parts);
}

extern "C" __global__ void sums_of_6(const u16* arrays, float* out, int many, int m, int parts) {
  sums<6>(arrays, out, many, m, parts);
}
"""
)
