"""Activation functions as tables on a GPU, to the same bits.

A number in half precision has 65,536 values. What a model's own function makes of each fits into a
multiprocessor's shared memory, so that an activation is one lookup, as fast as reading and writing
the states. Any function of single numbers will do, however costly: GELU takes torch a fifth longer
than that on an H200. A table is tried on another shape first: unless all bits agree, the model's
own function stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from layerscope_gpu.cuda import UnusableError, launch, multiprocessors, shared_memory

_VALUES = 65536
_BYTES = 2 * _VALUES
_THREADS = 1024
_EIGHT = 8  # numbers that a thread reads at once: 16 bytes
_FEWEST = 2**22  # numbers: a table takes longer to load than fewer are worth
_KINDS = (
    nn.GELU,
    nn.SiLU,
    nn.ReLU,
    nn.ReLU6,
    nn.Tanh,
    nn.Sigmoid,
    nn.Mish,
    nn.ELU,
    nn.SELU,
    nn.LeakyReLU,
    nn.Hardswish,
)

_found: WeakKeyDictionary[nn.Module, list[nn.Module]] = WeakKeyDictionary()
_tables: WeakKeyDictionary[nn.Module, dict[tuple[torch.dtype, torch.device], Tensor | None]] = (
    WeakKeyDictionary()
)

SOURCE = r"""
typedef unsigned short u16;

__device__ __forceinline__ unsigned both(const u16* table, unsigned x) {
  return table[x & 0xffffu] | (unsigned)table[x >> 16] << 16;
}

// numbers in eights, replaced by what the table has for them; a block for each multiprocessor, which keeps the whole table
extern "C" __global__ void __launch_bounds__(1024)
look_up(const uint4* from, const uint4* values, uint4* to, int eights) {
  extern __shared__ __align__(16) u16 table[];
  for (int i = threadIdx.x; i < 65536 / 8; i += blockDim.x) ((uint4*)table)[i] = values[i];
  __syncthreads();
  const int step = gridDim.x * blockDim.x;
  for (int start = blockIdx.x * blockDim.x + threadIdx.x; start < eights; start += 4 * step) {
    uint4 x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (start + i * step < eights) x[i] = from[start + i * step];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (start + i * step < eights)
        to[start + i * step] =
            make_uint4(both(table, x[i].x), both(table, x[i].y), both(table, x[i].z), both(table, x[i].w));
  }
}
"""


@contextmanager
def fast_activations(module: nn.Module) -> Iterator[None]:
    """While this is open, activation functions of a module are looked up, where that gives the
    same."""
    replaced = [
        part for part in _activations(module) if "forward" not in vars(part)
    ]  # or another thread has replaced it
    for part in replaced:
        part.forward = _Fast(part, part.forward)
    try:
        yield
    finally:
        for part in replaced:
            vars(part).pop("forward", None)


def _activations(module: nn.Module) -> list[nn.Module]:
    """The activation functions of a module that depend on nothing but their input."""
    if module not in _found:
        _found[module] = [part for part in module.modules() if _is_plain(part)]
    return _found[module]


def _is_plain(part: nn.Module) -> bool:
    known = type(part) in _KINDS or type(part).__module__ == "transformers.activations"
    return known and not part._parameters and not part._buffers and not part._modules


class _Fast:
    """An activation function, or its table in its place."""

    def __init__(self, part: nn.Module, own: Any) -> None:
        self.part, self.own = part, own

    def __call__(self, *given: Any, **named: Any) -> Any:
        if len(given) == 1 and not named and not torch.is_grad_enabled() and _fits(given[0]):
            table = table_of(self.part, self.own, given[0].dtype, given[0].device)
            if table is not None:
                return look_up(given[0], table)
        return self.own(*given, **named)


def _fits(states: Any) -> bool:
    """Return True if the kernel can take these."""
    if not isinstance(states, Tensor) or not states.is_cuda or not _shape_fits(states):
        return False
    return states.numel() >= _FEWEST and shared_memory(states.device.index) >= _BYTES


def _shape_fits(states: Tensor) -> bool:
    if (
        states.dtype not in (torch.bfloat16, torch.float16)
        or not states.is_contiguous()
        or states.data_ptr() % 16
    ):
        return False
    return states.numel() % _EIGHT == 0 and 0 < states.numel() // _EIGHT < 2**30


def table_of(part: nn.Module, own: Any, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """Return a function's value of every number of a type; None if it is no function of single
    numbers. Tried once."""
    known = _tables.setdefault(part, {})
    if (dtype, device) not in known:
        known[dtype, device] = _make_table(own, dtype, device)
    return known[dtype, device]


def _make_table(own: Any, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    every = torch.arange(_VALUES, dtype=torch.int32, device=device).to(torch.int16).view(dtype)
    generator = torch.Generator().manual_seed(0)
    some = (4 * torch.randn(40, 1024, generator=generator)).to(device, dtype)
    try:
        table = own(every)
        if not isinstance(table, Tensor) or table.dtype != dtype or table.shape != every.shape:
            return None
        table = table.contiguous()
        got, want = look_up(some, table), own(some)
        return (
            table
            if want.dtype == dtype and torch.equal(got.view(torch.int16), want.view(torch.int16))
            else None
        )
    except (UnusableError, OSError, AttributeError, RuntimeError, TypeError):
        return None


def look_up(states: Tensor, table: Tensor) -> Tensor:
    """Contiguous states in half precision, every number replaced by what the table has for it."""
    out = torch.empty_like(states)
    blocks = min(-(-states.numel() // (_EIGHT * _THREADS)), multiprocessors(states.device))
    launch(
        SOURCE, "look_up", blocks, _THREADS, _BYTES, [states, table, out, states.numel() // _EIGHT]
    )
    return out
