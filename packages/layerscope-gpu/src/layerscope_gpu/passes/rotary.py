"""Rotary position embedding of queries and keys in one CUDA kernel, with the same bits.

transformers rotates queries and keys in eight steps that each read and write all of them, which is
a third of a pass of a model like Pythia-410M on an H200. The kernel rounds where those steps round,
so no number changes. A model's own function is recognized by its results: on a few tensors they
must equal the kernel's, bit by bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from layerscope_gpu.cuda import HALVES, launch, tried_once

Rotation = Callable[..., Any]

_NAME = "apply_rotary_pos_emb"
_THREADS = 256
_EIGHT = 8  # numbers that a thread reads at once: 16 bytes
_ROWS = 4  # tokens of a block, or of a thread
_WARP = 32  # threads

_homes: WeakKeyDictionary[nn.Module, list[ModuleType]] = WeakKeyDictionary()
_in_place: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()

_SOURCE = (
    HALVES
    + r"""
// eight numbers that are read and written as 16 bytes at once
struct Eight {
  unsigned x[4];
  __device__ __forceinline__ Eight() {}
  __device__ __forceinline__ Eight(const u16* at) {
    const uint4 v = *(const uint4*)at;
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
  }
  __device__ __forceinline__ void put(u16* at) const {
    *(uint4*)at = make_uint4(x[0], x[1], x[2], x[3]);
  }
};

// products of two pairs of numbers, rounded as if they were stored
__device__ __forceinline__ unsigned products(unsigned x, unsigned y) {
  return paired(low(x, HALF) * low(y, HALF), high(x, HALF) * high(y, HALF), HALF);
}

// rotate eight numbers with the eight of their pairs; the first of a pair uses the negative second
__device__ __forceinline__ Eight turn(const Eight& x, const Eight& other, const Eight& cosine,
                                      const Eight& sine, bool is_first) {
  const unsigned signs = is_first ? 0x80008000u : 0u;
  Eight y;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned one = products(x.x[i], cosine.x[i]);
    const unsigned two = products(other.x[i] ^ signs, sine.x[i]);
    y.x[i] = paired(low(one, HALF) + low(two, HALF), high(one, HALF) + high(two, HALF), HALF);
  }
  return y;
}

// Queries, then keys: (batch, heads, tokens, across), read with these strides and written with the
// heads of a token next to each other. The first `turned` numbers of a head are rotated, in pairs
// half of that apart; the others are copied. A block takes ROWS tokens, and a thread eight numbers
// of each, or eight pairs. Numbers to copy are read for all tokens before any is written.
extern "C" __global__ void __launch_bounds__(256)
rotate(const u16* q, const u16* k, const u16* cosine, const u16* sine, u16* q_out, u16* k_out,
       int batch, int q_heads, int k_heads, int tokens, int across, int turned, int q_batch,
       int q_head, int q_token, int k_batch, int k_head, int k_token, int cos_batch, int cos_token,
       int sin_batch, int sin_token) {
  const unsigned pairs = turned / 16;
  const unsigned units = pairs + (across - turned) / 8;
  const unsigned heads = q_heads + k_heads, first = blockIdx.x * ROWS, rows = batch * tokens;
  const unsigned many = min((unsigned)ROWS, rows - first);
  for (unsigned unit = threadIdx.x; unit < heads * units; unit += blockDim.x) {
    // rotated numbers come first, then copied ones, so that the threads of a warp do the same
    const bool turns = unit < heads * pairs;
    const unsigned rest = turns ? unit : unit - heads * pairs, each = turns ? pairs : units - pairs;
    const unsigned h = rest / each;
    const unsigned one = turns ? rest % each * 8 : turned + rest % each * 8;
    const unsigned two = one + turned / 2;
    const bool is_key = h >= q_heads;
    const u16* from = is_key ? k + (size_t)(h - q_heads) * k_head : q + (size_t)h * q_head;
    const int of_batch = is_key ? k_batch : q_batch, of_token = is_key ? k_token : q_token;
    const unsigned step = (is_key ? k_heads : q_heads) * across;
    u16* to = is_key ? k_out + (size_t)(h - q_heads) * across : q_out + (size_t)h * across;
    unsigned b = first / tokens, t = first % tokens;
    if (!turns) {
      Eight x[ROWS];
#pragma unroll
      for (unsigned r = 0; r < ROWS; ++r) {
        if (r < many) x[r] = Eight(from + (size_t)b * of_batch + (size_t)t * of_token + one);
        if (++t == tokens) t = 0, ++b;
      }
#pragma unroll
      for (unsigned r = 0; r < ROWS; ++r)
        if (r < many) x[r].put(to + (size_t)(first + r) * step + one);
      continue;
    }
#pragma unroll 1
    for (unsigned r = 0; r < many; ++r) {
      const u16* at = from + (size_t)b * of_batch + (size_t)t * of_token;
      const u16* c = cosine + (size_t)b * cos_batch + (size_t)t * cos_token;
      const u16* s = sine + (size_t)b * sin_batch + (size_t)t * sin_token;
      const Eight x1(at + one), x2(at + two), c1(c + one), c2(c + two), s1(s + one), s2(s + two);
      turn(x1, x2, c1, s1, true).put(to + (size_t)(first + r) * step + one);
      turn(x2, x1, c2, s2, false).put(to + (size_t)(first + r) * step + two);
      if (++t == tokens) t = 0, ++b;
    }
  }
}

// The same in place, without copies. A thread takes eight numbers of a head, of ROWS tokens;
// another thread of its warp has the other numbers of the pairs. A warp takes as many heads as fit.
extern "C" __global__ void __launch_bounds__(256)
rotate_in_place(u16* q, u16* k, const u16* cosine, const u16* sine, int batch, int q_heads,
                int k_heads, int tokens, int turned, int q_batch, int q_head, int q_token,
                int k_batch, int k_head, int k_token, int cos_batch, int cos_token, int sin_batch,
                int sin_token) {
  const unsigned units = turned / 8, each = 32 / units, lane = threadIdx.x & 31;
  const unsigned unit = lane % units, heads = q_heads + k_heads, rows = batch * tokens;
  const unsigned warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
  const unsigned place = warp * each + lane / units, h = place % heads;
  const unsigned first = place / heads * ROWS;
  const bool is_key = h >= q_heads, is_first = unit < units / 2;
  const unsigned partner = is_first ? lane + units / 2 : lane - units / 2;
  u16* from = (is_key ? k + (size_t)(h - q_heads) * k_head : q + (size_t)h * q_head) + unit * 8;
  const int of_batch = is_key ? k_batch : q_batch, of_token = is_key ? k_token : q_token;
  // lanes beyond the last head do nothing
  const unsigned end = lane < each * units ? rows : 0;
  Eight x[ROWS];
  unsigned b = first / tokens, t = first % tokens;
#pragma unroll
  for (unsigned r = 0; r < ROWS; ++r) {
    if (first + r < end) x[r] = Eight(from + (size_t)b * of_batch + (size_t)t * of_token);
    if (++t == tokens) t = 0, ++b;
  }
  b = first / tokens, t = first % tokens;
#pragma unroll
  for (unsigned r = 0; r < ROWS; ++r) {
    Eight other;
#pragma unroll
    for (int i = 0; i < 4; ++i) other.x[i] = __shfl_sync(0xffffffffu, x[r].x[i], partner);
    if (first + r < end) {
      const Eight c(cosine + (size_t)b * cos_batch + (size_t)t * cos_token + unit * 8);
      const Eight s(sine + (size_t)b * sin_batch + (size_t)t * sin_token + unit * 8);
      turn(x[r], other, c, s, is_first).put(from + (size_t)b * of_batch + (size_t)t * of_token);
    }
    if (++t == tokens) t = 0, ++b;
  }
}
"""
)


@cache
def source(dtype: torch.dtype) -> str:
    """Return the source of the kernels for numbers of this type."""
    return f"#define HALF {int(dtype == torch.float16)}\n#define ROWS {_ROWS}\n" + _SOURCE


@contextmanager
def fast_rotation(module: nn.Module) -> Iterator[None]:
    """Make passes of a module use the kernel inside a block, where the bits agree."""
    replaced = []
    for home in _homes_of(module):
        rotation = getattr(home, _NAME)
        if not isinstance(rotation, _Fast):  # else another thread has replaced it
            replaced.append((home, rotation))
            setattr(home, _NAME, _Fast(rotation, _in_place.get(module, False)))
    try:
        yield
    finally:
        for home, rotation in replaced:
            setattr(home, _NAME, rotation)


def _homes_of(module: nn.Module) -> list[ModuleType]:
    """Return the Python modules whose function rotates the queries and keys of a model."""
    if module not in _homes:
        names = dict.fromkeys(type(child).__module__ for child in module.modules())
        loaded = [sys.modules[name] for name in names if name in sys.modules]
        _homes[module] = [home for home in loaded if callable(getattr(home, _NAME, None))]
    return _homes[module]


class _Fast:
    """A model's function, replaced by the kernel where that is possible."""

    def __init__(self, rotation: Rotation, in_place: bool = False) -> None:
        self.rotation = rotation
        self.in_place = in_place

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if (
            len(arguments) == 4
            and not keywords
            and not torch.is_grad_enabled()
            and _fits(*arguments)
        ):
            q, k, cos, _ = arguments
            if _is_same(self.rotation, q.dtype, q.device, cos.shape[-1] < q.shape[-1]):
                fits_warp = cos.shape[-1] <= _WARP * _EIGHT
                if self.in_place and fits_warp and _do_not_overlap(q, k):
                    return rotate_in_place(*arguments)
                return rotate(*arguments)
        return self.rotation(*arguments, **keywords)


def try_rotating_in_place(module: nn.Module, work: Callable[[], Any]) -> None:
    """Test, once per model, if queries and keys may be rotated in place.

    A model could still need their values from before. `work` is a pass of the model, which must
    give the same bits.
    """
    if module in _in_place or not _homes_of(module):
        return
    try:
        expected = work()
        _in_place[module] = True
        result = work()
        _in_place[module] = isinstance(result, Tensor) and torch.equal(result, expected)
    except (RuntimeError, TypeError, ValueError):
        _in_place[module] = False


def _do_not_overlap(q: Tensor, k: Tensor) -> bool:
    """Return True if no two numbers of queries and keys share memory."""
    for tensor in (q, k):
        _, heads, tokens, across = tensor.shape
        of_batch, of_head, of_token = tensor.stride()[:3]
        if of_head < across or of_token < heads * of_head or of_batch < tokens * of_token:
            return False
    return q.data_ptr() != k.data_ptr()


def _fits(q: Any, k: Any, cos: Any, sin: Any) -> bool:
    """Return True if the kernel supports the tensors."""
    tensors = (q, k, cos, sin)
    return (
        all(isinstance(tensor, Tensor) and tensor.is_cuda for tensor in tensors)
        and q.numel() > 0
        and k.numel() > 0
        and q.dtype in (torch.bfloat16, torch.float16)
        and all(tensor.dtype == q.dtype and tensor.device == q.device for tensor in tensors)
        and _shapes_fit(q, k, cos, sin)
    )


def _shapes_fit(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> bool:
    if q.ndim != 4 or k.ndim != 4 or cos.ndim != 3 or sin.shape != cos.shape:
        return False
    batch, _, tokens, across = q.shape
    turned = cos.shape[-1]
    if k.shape[0] != batch or k.shape[2:] != q.shape[2:]:
        return False
    if cos.shape[0] not in (1, batch) or cos.shape[1] != tokens:
        return False
    if across % _EIGHT or turned % (2 * _EIGHT) or turned > across:
        return False
    return all(
        tensor.stride(-1) == 1
        and tensor.data_ptr() % 16 == 0
        and all(step % _EIGHT == 0 for step in tensor.stride()[:-1])
        for tensor in (q, k, cos, sin)
    )


def _strides(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> list[int]:
    """Return the strides of the tensors over batch, heads and tokens; 0 for angles of all texts."""
    angles = [(x.stride(0) if len(x) > 1 else 0, x.stride(1)) for x in (cos, sin)]
    return [*q.stride()[:3], *k.stride()[:3], *angles[0], *angles[1]]


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries (B, heads, T, across) and keys, rotated by angles (B or 1, T, turned).

    In memory the heads of a token are neighbors, so that attention's result is laid out as the next
    product needs it.
    """
    batch, heads, tokens, across = q.shape
    turned = cos.shape[-1]
    out = [tensor.new_empty((batch, tokens, tensor.shape[1], across)) for tensor in (q, k)]
    sizes = [batch, heads, k.shape[1], tokens, across, turned, *_strides(q, k, cos, sin)]
    units = (heads + k.shape[1]) * (turned // (2 * _EIGHT) + (across - turned) // _EIGHT)
    threads = min(_THREADS, -(-units // 32) * 32)
    blocks = -(-batch * tokens // _ROWS)
    arguments: list[Tensor | int] = [q, k, cos, sin, *out, *sizes]
    launch(source(q.dtype), "rotate", blocks, threads, 0, arguments)
    return out[0].transpose(1, 2), out[1].transpose(1, 2)


def rotate_in_place(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys in their memory and return them."""
    batch, heads, tokens, _ = q.shape
    turned = cos.shape[-1]
    sizes = [batch, heads, k.shape[1], tokens, turned, *_strides(q, k, cos, sin)]
    places = -(-batch * tokens // _ROWS) * (heads + k.shape[1])
    warps = -(-places // (_WARP // (turned // _EIGHT)))
    blocks = -(-_WARP * warps // _THREADS)
    launch(source(q.dtype), "rotate_in_place", blocks, _THREADS, 0, [q, k, cos, sin, *sizes])
    return q, k


@tried_once
def _is_same(rotation: Rotation, dtype: torch.dtype, device: torch.device, partial: bool) -> bool:
    """Return True if a function gives the same bits as the kernels; `partial`: not all numbers of a
    head are rotated."""
    generator = torch.Generator().manual_seed(0)
    turned = 32 if partial else 64
    sizes = [(2, 3, 5, 64), (2, 1, 5, 64), (2, 5, turned), (2, 5, turned)]
    tensors = [(3 * torch.randn(size, generator=generator)).to(device, dtype) for size in sizes]
    expected = rotation(*tensors)
    results = rotate(*tensors), rotate_in_place(*tensors)
    return len(expected) == 2 and all(
        torch.equal(a, b) for result in results for a, b in zip(expected, result, strict=True)
    )
