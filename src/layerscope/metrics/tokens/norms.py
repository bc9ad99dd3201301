"""Norms and sums of token states, and the token that stands out: the sink.

Sums of half-precision states are one pass of a kernel of our own on CUDA, where NVRTC can compile it and a first try is right;
everything else takes torch's operators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from layerscope.spectra.cuda import HALVES, UnusableError, launch


@dataclass(frozen=True)
class Sink:
    """The token with the largest norm of each prompt (B,): its position and its norm over the median norm."""

    position: Tensor
    ratio: Tensor


class TokenFacts(NamedTuple):
    """What goes with the centered rows of some prompts: norms of their states (B, T), float64; which tokens are real (B, T), None

    where all are; each prompt's largest token (B,); and what the states were stored as.
    """

    norms: Tensor
    mask: Tensor | None
    sink: Tensor
    dtype: torch.dtype


def far_token(device: torch.device) -> tuple[Tensor, TokenFacts]:
    """Rows with a known answer, on which kernels are tried: a square's corners, then a token far away.

    With it and without it they turn by right angles.
    """
    rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, 50.0]], device=device)
    rows = rows - rows[:4].mean(0)
    norms = torch.linalg.vector_norm(rows, dim=-1).double().unsqueeze(0)
    return rows, TokenFacts(norms, None, torch.tensor([4], device=device), torch.float32)


def full_mask(states: Tensor) -> Tensor:
    """A mask that says every token is real."""
    return torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)


def find_sink(states: Tensor, mask: Tensor | None = None) -> Sink:
    """The largest token of each prompt in states (B, T, D); the first one if several are equal."""
    norms = token_norms(states)
    position = largest_token(norms, mask)
    return Sink(position, sink_ratio(norms, position, mask))


def token_norms(states: Tensor) -> Tensor:
    """Token norms (B, T), float64; half-precision states are summed in float32."""
    kind = torch.float64 if states.dtype == torch.float64 else torch.float32
    return torch.linalg.vector_norm(states, dim=-1, dtype=kind).double()


def largest_token(norms: Tensor, mask: Tensor | None = None) -> Tensor:
    """Where the largest of each prompt's token norms (..., T) is."""
    return (norms if mask is None else norms.masked_fill(~mask, -1.0)).argmax(-1)


def sink_ratio(norms: Tensor, position: Tensor, mask: Tensor | None = None) -> Tensor:
    """The norm at `position` over the median norm of each prompt; norms (..., T), NaN where the median is zero."""
    mask = torch.ones_like(norms, dtype=torch.bool) if mask is None else mask.expand_as(norms)
    lengths = mask.sum(-1)
    ranked = norms.masked_fill(~mask, math.inf).sort(-1).values
    low = ranked.gather(-1, ((lengths - 1) // 2).clamp(min=0).unsqueeze(-1)).squeeze(-1)
    high = ranked.gather(-1, (lengths // 2).clamp(max=ranked.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
    median = torch.where(lengths % 2 == 1, low, (low + high) / 2)
    largest = norms.gather(-1, position.unsqueeze(-1)).squeeze(-1)
    return torch.where((median > 0) & (lengths > 0), largest / median, torch.nan)


def without_token(mask: Tensor, position: Tensor) -> Tensor:
    """The mask with one token of each prompt taken out."""
    return mask.scatter(-1, position.unsqueeze(-1), False)


def token_sum(states: Tensor, mask: Tensor | None = None) -> Tensor:
    """The sum of each prompt's real states (B, D), float64.

    On a GPU float64 copies of all states would cost more than the sum: half-precision states, 16 of which float32 adds up with
    hardly a digit lost, are added in groups first. On a CPU a product with ones is five times as fast as a sum over that
    dimension.
    """
    if states.is_cuda and (summed := token_sums(states, mask)) is not None:
        return summed
    if mask is not None:
        states = torch.where(mask.unsqueeze(-1), states, 0)
    if states.is_cuda and states.dtype in (torch.bfloat16, torch.float16):
        return sum_in_groups(states)
    if states.device.type == "cpu":
        ones = torch.ones(1, 1, states.shape[1], dtype=torch.float64).expand(len(states), 1, -1)
        return torch.bmm(ones, states.double()).squeeze(1)
    return states.sum(1, dtype=torch.float64)


def sum_in_groups(states: Tensor, size: int = 16) -> Tensor:
    """Sums over tokens (B, D), float64: groups of tokens in float32, then the groups."""
    whole = states.shape[1] // size * size
    rest = states[:, whole:].sum(1, dtype=torch.float32).double()
    groups = states[:, :whole].unflatten(1, (-1, size)).sum(2, dtype=torch.float32)
    return groups.sum(1, dtype=torch.float64) + rest


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
    chunks = -(-tokens // _CHUNK)
    out = torch.empty(texts, chunks, width, dtype=torch.float64, device=states.device)
    real = states if mask is None else mask.contiguous()
    threads = min(256, -(-width // 4 // 32) * 32)
    blocks = texts * chunks * -(-width // (4 * threads))
    half = int(states.dtype == torch.float16)
    launch(SOURCE, "token_sums", blocks, threads, 0, [states, real, out, tokens, width, half, int(mask is not None)])
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
