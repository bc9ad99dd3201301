"""Two passes over token states and Gram matrices as kernels of our own: each reads its input once.

Used on CUDA where NVRTC can compile them and a first try is right; everything else takes torch's operators.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from layerscope.spectra.cuda.kernels import launch
from layerscope.spectra.cuda.libraries import UnusableError

_THREADS = 128
_ROWS = 8

SOURCE = r"""
typedef unsigned short u16;

__device__ __forceinline__ float widened(u16 x, int half) {
  if (!half) return __uint_as_float(((unsigned int)x) << 16);  // bfloat16: the upper half of a float
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x));
  return f;
}

// sums over a text's tokens, four features a thread: sixteen tokens in float, then double
extern "C" __global__ void token_sums(const u16* states, const unsigned char* mask, double* out, int tokens, int width,
                                      int half, int masked) {
  const int chunks = (width + 4 * blockDim.x - 1) / (4 * blockDim.x);
  const int text = blockIdx.x / chunks, k = (blockIdx.x % chunks * blockDim.x + threadIdx.x) * 4;
  if (k >= width) return;
  const u16* at = states + (size_t)text * tokens * width + k;
  const unsigned char* real = mask + (size_t)text * tokens;
  double total[4] = {0., 0., 0., 0.};
  for (int start = 0; start < tokens; start += 16) {
    float sum[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int t = start + i;
      if (t < tokens && (!masked || real[t])) {
        const ushort4 x = *(const ushort4*)(at + (size_t)t * width);
        sum[0] += widened(x.x, half);
        sum[1] += widened(x.y, half);
        sum[2] += widened(x.z, half);
        sum[3] += widened(x.w, half);
      }
    }
    for (int i = 0; i < 4; ++i) total[i] += sum[i];
  }
  for (int i = 0; i < 4; ++i) out[(size_t)text * width + k + i] = total[i];
}

// (g_ij - shift_i - shift_j) scale_i scale_j, eight rows a block
extern "C" __global__ void recentred(const float* gram, const float* shift, const float* scale, float* out, int n) {
  const int groups = (n + 7) / 8, m = blockIdx.x / groups, first = blockIdx.x % groups * 8;
  shift += (size_t)m * n;
  scale += (size_t)m * n;
  const int last = min(first + 8, n);
  for (int k = threadIdx.x * 4; k < n; k += blockDim.x * 4) {
    float by[4], off[4];
    const int many = min(4, n - k);
    for (int c = 0; c < many; ++c) by[c] = scale[k + c], off[c] = shift[k + c];
    for (int i = first; i < last; ++i) {
      const size_t at = ((size_t)m * n + i) * n + k;
      const float s = scale[i], o = shift[i];
      if ((n & 3) == 0) {
        float4 g = *(const float4*)(gram + at);
        g.x = s == 0.f || by[0] == 0.f ? 0.f : ((g.x - o) - off[0]) * s * by[0];
        g.y = s == 0.f || by[1] == 0.f ? 0.f : ((g.y - o) - off[1]) * s * by[1];
        g.z = s == 0.f || by[2] == 0.f ? 0.f : ((g.z - o) - off[2]) * s * by[2];
        g.w = s == 0.f || by[3] == 0.f ? 0.f : ((g.w - o) - off[3]) * s * by[3];
        *(float4*)(out + at) = g;
      } else {
        for (int c = 0; c < many; ++c)
          out[at + c] = s == 0.f || by[c] == 0.f ? 0.f : ((gram[at + c] - o) - off[c]) * s * by[c];
      }
    }
  }
}
"""


def token_sums(states: Tensor, mask: Tensor | None) -> Tensor | None:
    """Sums over the real tokens (B, D), float64, of half-precision states (B, T, D); None where the kernel cannot be used."""
    if not states.is_cuda or states.dtype not in (torch.bfloat16, torch.float16) or states.shape[-1] % 4:
        return None
    if mask is not None and (mask.shape != states.shape[:2] or mask.dtype != torch.bool or mask.device != states.device):
        return None
    if not states.is_contiguous() or states.data_ptr() % 8 or not states.numel() or not usable(states.device.index):
        return None
    return _token_sums(states, mask)


def _token_sums(states: Tensor, mask: Tensor | None) -> Tensor:
    texts, tokens, width = states.shape
    out = torch.empty(texts, width, dtype=torch.float64, device=states.device)
    real = states if mask is None else mask.contiguous()
    threads = min(256, -(-width // 4 // 32) * 32)
    blocks = texts * -(-width // (4 * threads))
    half = int(states.dtype == torch.float16)
    launch(SOURCE, "token_sums", blocks, threads, 0, [states, real, out, tokens, width, half, int(mask is not None)])
    return out


def recentred(gram: Tensor, shift: Tensor | None, scale: Tensor, out: Tensor | None = None) -> Tensor:
    """(G_ij − shift_i − shift_j) · scale_i · scale_j for matrices (B, n, n); rows with scale 0 are zero. Into `out`, if given."""
    if gram.is_cuda and gram.dtype == torch.float32 and gram.is_contiguous() and usable(gram.device.index):
        return _recentred(gram, torch.zeros_like(scale) if shift is None else shift, scale, out)
    g = gram if shift is None else (gram - shift.unsqueeze(-1)).sub_(shift.unsqueeze(-2))
    made = (g * scale.unsqueeze(-1)).mul_(scale.unsqueeze(-2))
    return made if out is None else out.copy_(made)


def _recentred(gram: Tensor, shift: Tensor, scale: Tensor, out: Tensor | None) -> Tensor:
    count, n = gram.shape[:2]
    out = torch.empty_like(gram) if out is None else out
    arguments: list[Tensor | int] = [gram, shift.contiguous(), scale.contiguous(), out, n]
    launch(SOURCE, "recentred", count * -(-n // _ROWS), _THREADS, 0, arguments)
    return out


@cache
def usable(index: int) -> bool:
    """Whether the kernels work on a device: compiled and tried once."""
    device = torch.device("cuda", index)
    try:
        states = torch.arange(2 * 19 * 8, device=device).view(2, 19, 8).to(torch.bfloat16)
        sums = torch.equal(_token_sums(states, None), states.sum(1, dtype=torch.float64))
        gram = torch.arange(2 * 7 * 7, device=device).view(2, 7, 7).float()
        scale = torch.arange(14, device=device).view(2, 7).float()
        want = (gram - scale.unsqueeze(-1) - scale.unsqueeze(-2)) * scale.unsqueeze(-1) * scale.unsqueeze(-2)
        return sums and torch.equal(_recentred(gram, scale, scale, None), want)
    except (UnusableError, OSError, AttributeError, RuntimeError):
        return False
