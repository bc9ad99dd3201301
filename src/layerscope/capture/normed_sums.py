"""Sums over tokens of states under the final norm, in one pass over the states: the normed ones are never written down.

A profile with views reads only the mean vector of each view. Norming every layer's states and summing them goes over them three
times; this kernel, on CUDA and for half-precision states, once. A norm module is known by what it does: its own result on a few
states must be ours.
"""

from __future__ import annotations

import struct
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from layerscope.spectra.kernels import launch
from layerscope.spectra.libraries import UnusableError

Kind = Literal["layer", "rms", "rms-rounded"]
_KINDS: dict[Kind, int] = {"layer": 0, "rms": 1, "rms-rounded": 2}
_THREADS = 256
_WIDEST = 8192
_known: WeakKeyDictionary[nn.Module, dict[tuple[torch.dtype, int], Kind | None]] = WeakKeyDictionary()

SOURCE = r"""
typedef unsigned short u16;

__device__ __forceinline__ float widened(u16 x, int half) {
  if (!half) return __uint_as_float(((unsigned int)x) << 16);  // bfloat16: the upper half of a float
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x));
  return f;
}

// to the nearest value of the states' type, as the model itself would store it
__device__ __forceinline__ float stored(float x, int half) {
  if (!half) {
    const unsigned int u = __float_as_uint(x);
    return x == x ? __uint_as_float((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u) : x;
  }
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return widened(h, 1);
}

__device__ __forceinline__ float warp_sum(float x) {
  for (int s = 16; s > 0; s >>= 1) x += __shfl_xor_sync(0xffffffffu, x, s);
  return x;
}

// one text a block, sixteen tokens at a time: a warp finds a token's mean and scale, then every thread sums its columns
extern "C" __global__ void __launch_bounds__(256)
normed_sums(const u16* states, const unsigned char* mask, const float* weight, const float* bias, double* out, int epsilon,
            int tokens, int width, int half, int masked, int kind) {
  __shared__ float mean[16], scale[16];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const u16* at = states + (size_t)blockIdx.x * tokens * width;
  const unsigned char* real = mask + (size_t)blockIdx.x * tokens;
  const float eps = __int_as_float(epsilon);
  double total[COLUMNS * 4];
#pragma unroll
  for (int c = 0; c < COLUMNS * 4; ++c) total[c] = 0.;
  for (int start = 0; start < tokens; start += 16) {
    for (int i = warp; i < 16 && start + i < tokens; i += 8) {
      const u16* row = at + (size_t)(start + i) * width;
      float centre = 0.f, square = 0.f;
      if (kind == 0) {
        for (int k = lane * 4; k < width; k += 128) {
          const ushort4 x = *(const ushort4*)(row + k);
          centre += (widened(x.x, half) + widened(x.y, half)) + (widened(x.z, half) + widened(x.w, half));
        }
        centre = warp_sum(centre) / width;
      }
      for (int k = lane * 4; k < width; k += 128) {
        const ushort4 x = *(const ushort4*)(row + k);
        const float a = widened(x.x, half) - centre, b = widened(x.y, half) - centre;
        const float c = widened(x.z, half) - centre, d = widened(x.w, half) - centre;
        square += (a * a + b * b) + (c * c + d * d);
      }
      square = warp_sum(square) / width;
      if (lane == 0) {
        mean[i] = centre;
        scale[i] = 1.f / sqrtf(square + eps);
      }
    }
    __syncthreads();
    const int many = min(16, tokens - start);
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const int k = (c * 256 + tid) * 4;
      if (k < width) {
        const float4 w = *(const float4*)(weight + k), b = *(const float4*)(bias + k);
        float sum[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll 4
        for (int i = 0; i < many; ++i) {
          if (masked && !real[start + i]) continue;
          const ushort4 x = *(const ushort4*)(at + (size_t)(start + i) * width + k);
          float y[4] = {widened(x.x, half), widened(x.y, half), widened(x.z, half), widened(x.w, half)};
          const float g[4] = {w.x, w.y, w.z, w.w}, o[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            y[e] = (y[e] - mean[i]) * scale[i];
            if (kind == 2) y[e] = stored(y[e], half);
            sum[e] += stored(y[e] * g[e] + o[e], half);
          }
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) total[c * 4 + e] += sum[e];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) {
    const int k = (c * 256 + tid) * 4;
    if (k < width)
      for (int e = 0; e < 4; ++e) out[(size_t)blockIdx.x * width + k + e] = total[c * 4 + e];
  }
}
"""


def normed_sums(states: Tensor, mask: Tensor | None, norm: nn.Module) -> Tensor | None:
    """Sums over the real tokens (B, D), float64, of norm(states); None where it must be done step by step."""
    if not states.is_cuda or states.dtype not in (torch.bfloat16, torch.float16):
        return None
    width = states.shape[-1]
    if not states.is_contiguous() or width % 4 or width > _WIDEST:
        return None
    kind = _kind_of(norm, states)
    return None if kind is None else _sums(states, mask, norm, kind)


def _sums(states: Tensor, mask: Tensor | None, norm: nn.Module, kind: Kind) -> Tensor:
    texts, tokens, width = states.shape
    out = torch.empty(texts, width, dtype=torch.float64, device=states.device)
    weight, bias, epsilon = _settings(norm)
    real = states if mask is None else mask.contiguous()
    numbers = [epsilon, tokens, width, int(states.dtype == torch.float16), int(mask is not None), _KINDS[kind]]
    columns = -(-width // (4 * _THREADS))  # groups of four that a thread owns
    launch(f"#define COLUMNS {columns}\n{SOURCE}", "normed_sums", texts, _THREADS, 0, [states, real, weight, bias, out, *numbers])
    return out


def _settings(norm: nn.Module) -> tuple[Tensor, Tensor, int]:
    """Weight and bias of a norm, float32 on its device, and the bits of its ε."""
    weight, bias = norm.weight, getattr(norm, "bias", None)
    assert isinstance(weight, Tensor)
    held = [name for name in ("eps", "variance_epsilon", "epsilon") if isinstance(getattr(norm, name, None), float)]
    if not held:
        raise UnusableError("a norm without an epsilon")
    (bits,) = struct.unpack("i", struct.pack("f", getattr(norm, held[0])))
    scale = weight.detach().float().contiguous()
    return scale, torch.zeros_like(scale) if bias is None else bias.detach().float().contiguous(), bits


def _kind_of(norm: nn.Module, states: Tensor) -> Kind | None:
    """Which of the kinds a module computes, tried once; None if none of them, or if the kernel cannot be used."""
    held = _known.setdefault(norm, {})
    key = states.dtype, states.device.index or 0
    if key not in held:
        held[key] = _find_kind(norm, states)
    return held[key]


@torch.inference_mode()
def _find_kind(norm: nn.Module, states: Tensor) -> Kind | None:
    try:
        generator = torch.Generator().manual_seed(0)
        given = torch.randn(2, 19, states.shape[-1], generator=generator)
        given = ((given + 0.5) * torch.tensor([0.1, 30.0])[:, None, None]).to(states.device, states.dtype)
        mask = torch.arange(19, device=states.device).expand(2, -1) < torch.tensor([[19], [11]], device=states.device)
        want = torch.where(mask.unsqueeze(-1), norm(given), 0).sum(1, dtype=torch.float64)
        # at most a few elements may be rounded the other way: a sum of rows rounded once more often is further off than that
        unit = want.abs().mean() * torch.finfo(states.dtype).eps
        errors = {kind: float((_sums(given, mask, norm, kind) - want).abs().mean() / unit) for kind in _KINDS}
        best = min(errors, key=errors.__getitem__)
        return best if errors[best] < 0.05 else None
    except (UnusableError, OSError, AttributeError, RuntimeError, AssertionError):
        return None
