"""Rotary position embedding of queries and keys in one CUDA kernel, to the same bits.

transformers turns queries and keys in eight steps that each read and write all of them: on an H200
that is a third of a pass of a model like Pythia-410M. The kernel rounds where those steps round, so
no number changes. A model's own function is recognized by its results: on a few tensors they must
equal ours, bit by bit.
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
// eight numbers, read and written as 16 bytes at once: a struct of them would be copied number by number
struct Eight {
  unsigned x[4];
  __device__ __forceinline__ Eight() {}
  __device__ __forceinline__ Eight(const u16* at) {
    const uint4 v = *(const uint4*)at;
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
  }
  __device__ __forceinline__ void put(u16* at) const { *(uint4*)at = make_uint4(x[0], x[1], x[2], x[3]); }
};

// products of two numbers each, as a step of its own stores them
__device__ __forceinline__ unsigned products(unsigned x, unsigned y) {
  return paired(low(x, HALF) * low(y, HALF), high(x, HALF) * high(y, HALF), HALF);
}

// eight numbers, turned with the eight they are paired with; the first of a pair takes its partner's negative
__device__ __forceinline__ Eight turn(const Eight& x, const Eight& other, const Eight& cosine, const Eight& sine, bool is_first) {
  const unsigned signs = is_first ? 0x80008000u : 0u;
  Eight y;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned one = products(x.x[i], cosine.x[i]), two = products(other.x[i] ^ signs, sine.x[i]);
    y.x[i] = paired(low(one, HALF) + low(two, HALF), high(one, HALF) + high(two, HALF), HALF);
  }
  return y;
}

// Queries, then keys: (batch, heads, tokens, across) with these strides in, and out with the heads of a token side by side. The
// first `turned` numbers of a head are turned, in pairs half of that apart; the others are copied. A block takes ROWS tokens; one
// of its threads takes eight numbers of each, or eight pairs; what is copied is read for all of them before any is written.
extern "C" __global__ void __launch_bounds__(256)
rotate(const u16* q, const u16* k, const u16* cosine, const u16* sine, u16* q_out, u16* k_out, int batch, int q_heads,
       int k_heads, int tokens, int across, int turned, int q_batch, int q_head, int q_token, int k_batch, int k_head,
       int k_token, int cos_batch, int cos_token, int sin_batch, int sin_token) {
  const unsigned pairs = turned / 16, units = pairs + (across - turned) / 8, heads = q_heads + k_heads;
  const unsigned first = blockIdx.x * ROWS, rows = batch * tokens, many = min((unsigned)ROWS, rows - first);
  for (unsigned unit = threadIdx.x; unit < heads * units; unit += blockDim.x) {
    // what is turned comes first, then what is copied: the threads of a warp do the same
    const bool turns = unit < heads * pairs;
    const unsigned rest = turns ? unit : unit - heads * pairs, each = turns ? pairs : units - pairs;
    const unsigned h = rest / each, one = turns ? rest % each * 8 : turned + rest % each * 8, two = one + turned / 2;
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

// The same in place: what is copied is left where it is. A thread takes eight numbers of a head, of ROWS tokens; another of its
// warp has those they are paired with. A warp takes as many heads as fit into it.
extern "C" __global__ void __launch_bounds__(256)
rotate_in_place(u16* q, u16* k, const u16* cosine, const u16* sine, int batch, int q_heads, int k_heads, int tokens, int turned,
                int q_batch, int q_head, int q_token, int k_batch, int k_head, int k_token, int cos_batch, int cos_token,
                int sin_batch, int sin_token) {
  const unsigned units = turned / 8, each = 32 / units, lane = threadIdx.x & 31, unit = lane % units;
  const unsigned heads = q_heads + k_heads, rows = batch * tokens, warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
  const unsigned place = warp * each + lane / units, h = place % heads, first = place / heads * ROWS;
  const bool is_key = h >= q_heads, is_first = unit < units / 2;
  const unsigned partner = is_first ? lane + units / 2 : lane - units / 2;
  u16* from = (is_key ? k + (size_t)(h - q_heads) * k_head : q + (size_t)h * q_head) + unit * 8;
  const int of_batch = is_key ? k_batch : q_batch, of_token = is_key ? k_token : q_token;
  const unsigned end = lane < each * units ? rows : 0;  // lanes beyond the last head have nothing to do
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
    """The kernel for numbers of this kind."""
    return f"#define HALF {int(dtype == torch.float16)}\n#define ROWS {_ROWS}\n" + _SOURCE


@contextmanager
def fast_rotation(module: nn.Module) -> Iterator[None]:
    """While this is open, passes of a module turn queries and keys with the kernel, where that
    gives the same."""
    replaced = []
    for home in _homes_of(module):
        own = getattr(home, _NAME)
        if not isinstance(own, _Fast):  # or another thread has replaced it
            replaced.append((home, own))
            setattr(home, _NAME, _Fast(own, _in_place.get(module, False)))
    try:
        yield
    finally:
        for home, own in replaced:
            setattr(home, _NAME, own)


def _homes_of(module: nn.Module) -> list[ModuleType]:
    """The Python modules whose function turns the queries and keys of a model."""
    if module not in _homes:
        names = dict.fromkeys(type(part).__module__ for part in module.modules())
        found = [sys.modules[name] for name in names if name in sys.modules]
        _homes[module] = [home for home in found if callable(getattr(home, _NAME, None))]
    return _homes[module]


class _Fast:
    """A model's function, or the kernel in its place."""

    def __init__(self, own: Rotation, in_place: bool = False) -> None:
        self.own, self.in_place = own, in_place

    def __call__(self, *given: Any, **named: Any) -> Any:
        if len(given) == 4 and not named and not torch.is_grad_enabled() and _fits(*given):
            q, k, cos, _ = given
            if _is_same(self.own, q.dtype, q.device, cos.shape[-1] < q.shape[-1]):
                by_warps = cos.shape[-1] <= _WARP * _EIGHT  # of which one can take a head
                return (
                    rotate_in_place(*given)
                    if self.in_place and by_warps and _apart(q, k)
                    else rotate(*given)
                )
        return self.own(*given, **named)


def try_rotating_in_place(module: nn.Module, work: Callable[[], Any]) -> None:
    """Find out, once, whether queries and keys may be turned where they are: a model could still
    need them as they were.

    `work` is a pass of the model; it must give the same bits.
    """
    if module in _in_place or not _homes_of(module):
        return
    try:
        want = work()
        _in_place[module] = True
        got = work()
        _in_place[module] = isinstance(got, Tensor) and torch.equal(got, want)
    except (RuntimeError, TypeError, ValueError):
        _in_place[module] = False


def _apart(q: Tensor, k: Tensor) -> bool:
    """Return True if every number of queries and keys is there once, with the heads of a token near
    each other."""
    for one in (q, k):
        _, heads, tokens, across = one.shape
        of_batch, of_head, of_token = one.stride()[:3]
        if of_head < across or of_token < heads * of_head or of_batch < tokens * of_token:
            return False
    return q.data_ptr() != k.data_ptr()


def _fits(q: Any, k: Any, cos: Any, sin: Any) -> bool:
    """Return True if the kernel can take these."""
    tensors = (q, k, cos, sin)
    if (
        not all(isinstance(one, Tensor) and one.is_cuda for one in tensors)
        or not q.numel()
        or not k.numel()
    ):
        return False
    if q.dtype not in (torch.bfloat16, torch.float16) or any(
        one.dtype != q.dtype or one.device != q.device for one in tensors
    ):
        return False
    return _shapes_fit(q, k, cos, sin)


def _shapes_fit(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> bool:
    if q.ndim != 4 or k.ndim != 4 or cos.ndim != 3 or sin.shape != cos.shape:
        return False
    batch, _, tokens, across = q.shape
    if (
        k.shape[0] != batch
        or k.shape[2:] != q.shape[2:]
        or cos.shape[0] not in (1, batch)
        or cos.shape[1] != tokens
    ):
        return False
    if across % _EIGHT or cos.shape[-1] % (2 * _EIGHT) or cos.shape[-1] > across:
        return False
    return all(
        one.stride(-1) == 1
        and one.data_ptr() % 16 == 0
        and all(step % _EIGHT == 0 for step in one.stride()[:-1])
        for one in (q, k, cos, sin)
    )


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries (B, heads, T, across) and keys, turned by angles (B or 1, T, turned).

    In memory, the heads of a token are side by side: what attention makes of them is then laid out
    as the next product needs it.
    """
    batch, heads, tokens, across = q.shape
    turned = cos.shape[-1]
    out = [one.new_empty((batch, tokens, one.shape[1], across)) for one in (q, k)]
    angles = [
        step
        for one in (cos, sin)
        for step in (one.stride(0) if one.shape[0] > 1 else 0, one.stride(1))
    ]
    sizes = [
        batch,
        heads,
        k.shape[1],
        tokens,
        across,
        turned,
        *q.stride()[:3],
        *k.stride()[:3],
        *angles,
    ]
    units = (heads + k.shape[1]) * (turned // (2 * _EIGHT) + (across - turned) // _EIGHT)
    threads = min(_THREADS, -(-units // 32) * 32)
    launch(
        source(q.dtype),
        "rotate",
        -(-batch * tokens // _ROWS),
        threads,
        0,
        [q, k, cos, sin, *out, *sizes],
    )
    return out[0].transpose(1, 2), out[1].transpose(1, 2)


def rotate_in_place(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The same queries and keys, turned where they are: numbers that are not turned are not
    touched."""
    batch, heads, tokens, _ = q.shape
    turned = cos.shape[-1]
    angles = [
        step
        for one in (cos, sin)
        for step in (one.stride(0) if one.shape[0] > 1 else 0, one.stride(1))
    ]
    sizes = [batch, heads, k.shape[1], tokens, turned, *q.stride()[:3], *k.stride()[:3], *angles]
    places = -(-batch * tokens // _ROWS) * (heads + k.shape[1])
    warps = -(-places // (_WARP // (turned // _EIGHT)))
    launch(
        source(q.dtype),
        "rotate_in_place",
        -(-_WARP * warps // _THREADS),
        _THREADS,
        0,
        [q, k, cos, sin, *sizes],
    )
    return q, k


@tried_once
def _is_same(own: Rotation, dtype: torch.dtype, device: torch.device, partial: bool) -> bool:
    """Try whether a function gives what the kernels give, bit by bit; `partial`: not all numbers of
    a head are turned."""
    generator = torch.Generator().manual_seed(0)
    turned = 32 if partial else 64
    sizes = [(2, 3, 5, 64), (2, 1, 5, 64), (2, 5, turned), (2, 5, turned)]
    tensors = [(3 * torch.randn(size, generator=generator)).to(device, dtype) for size in sizes]
    expected = own(*tensors)
    results = rotate(*tensors), rotate_in_place(*tensors)
    return len(expected) == 2 and all(
        torch.equal(a, b) for result in results for a, b in zip(expected, result, strict=True)
    )
