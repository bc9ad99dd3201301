"""Sums over the tokens of half-precision states in one pass: sixteen tokens in float32, then
float64."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from layerscope_gpu.cuda import HALVES, UnusableError, launch

_CHUNK = 128  # tokens that a block sums: long texts alone would leave most of the chip idle

SOURCE = (
    HALVES
    + f"#define CHUNK {_CHUNK}\n"
    + r"""
// sums over CHUNK of a text's tokens, four features a thread: sixteen tokens in float, then double
extern "C" __global__ void token_sums(const u16* states, const unsigned char* mask, double* out, int tokens, int width,
                                      int half, int masked) {
  const int parts = (width + 4 * blockDim.x - 1) / (4 * blockDim.x), chunks = (tokens + CHUNK - 1) / CHUNK;
  const int chunk = blockIdx.x / parts, text = chunk / chunks, begin = chunk % chunks * CHUNK;
  const int k = (blockIdx.x % parts * blockDim.x + threadIdx.x) * 4;
  if (k >= width) return;
  const u16* at = states + (size_t)text * tokens * width + k;
  const unsigned char* real = mask + (size_t)text * tokens;
  double total[4] = {0., 0., 0., 0.};
  for (int start = begin; start < min(begin + CHUNK, tokens); start += 16) {
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
  for (int i = 0; i < 4; ++i) out[(size_t)chunk * width + k + i] = total[i];
}
"""
)


def token_sums(states: Tensor, mask: Tensor | None) -> Tensor | None:
    """Sums over the real tokens (B, D), float64, of half-precision states (B, T, D); None where the
    kernel cannot be used."""
    if (
        not states.is_cuda
        or states.dtype not in (torch.bfloat16, torch.float16)
        or states.shape[-1] % 4
    ):
        return None
    if mask is not None and (
        mask.shape != states.shape[:2] or mask.dtype != torch.bool or mask.device != states.device
    ):
        return None
    if (
        not states.is_contiguous()
        or states.data_ptr() % 8
        or not states.numel()
        or not usable(states.device.index)
    ):
        return None
    return _token_sums(states, mask)


def _token_sums(states: Tensor, mask: Tensor | None) -> Tensor:
    texts, tokens, width = states.shape
    chunks = -(-tokens // _CHUNK)
    out = torch.empty(texts, chunks, width, dtype=torch.float64, device=states.device)
    real = states if mask is None else mask.contiguous()
    threads = min(256, -(-width // 4 // 32) * 32)
    blocks = texts * chunks * -(-width // (4 * threads))
    half = int(states.dtype == torch.float16)
    launch(
        SOURCE,
        "token_sums",
        blocks,
        threads,
        0,
        [states, real, out, tokens, width, half, int(mask is not None)],
    )
    return out.sum(1) if chunks > 1 else out.squeeze(1)


@cache
def usable(index: int) -> bool:
    """Whether the kernel works on a device: compiled and tried once."""
    device = torch.device("cuda", index)
    try:
        states = torch.arange(2 * 19 * 8, device=device).view(2, 19, 8).to(torch.bfloat16)
        return torch.equal(_token_sums(states, None), states.sum(1, dtype=torch.float64))
    except (UnusableError, OSError, AttributeError, RuntimeError):
        return False
