"""Activation functions as tables on a GPU, with the same bits.

Half-precision numbers have 65,536 values. A table of a function at all of them fits into a
multiprocessor's shared memory, so that an activation is one lookup, as fast as reading and writing
the states (torch's GELU takes a fifth longer on an H200). This works for any function of single
numbers. A trial on another shape comes first: unless all bits agree, the model's own function is
used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from layerscope_gpu.cuda import FAILURES, launch, multiprocessors, shared_memory

_VALUES = 65536
_BYTES = 2 * _VALUES
_THREADS = 1024
_EIGHT = 8  # numbers that a thread reads at once: 16 bytes
_FEWEST = 2**22  # numbers: for fewer, loading the table takes longer than it saves
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

_activations_of: WeakKeyDictionary[nn.Module, list[nn.Module]] = WeakKeyDictionary()
_tables: WeakKeyDictionary[nn.Module, dict[tuple[torch.dtype, torch.device], Tensor | None]] = (
    WeakKeyDictionary()
)

SOURCE = r"""
typedef unsigned short u16;

__device__ __forceinline__ unsigned both(const u16* table, unsigned x) {
  return table[x & 0xffffu] | (unsigned)table[x >> 16] << 16;
}

// replace numbers, in groups of eight, by their values in the table; each multiprocessor has one
// block, which keeps the whole table
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
            make_uint4(both(table, x[i].x), both(table, x[i].y), both(table, x[i].z),
                       both(table, x[i].w));
  }
}
"""


@contextmanager
def replace_forwards(
    modules: Iterable[nn.Module], wrap: Callable[[nn.Module], Callable[..., Any]]
) -> Iterator[None]:
    """Use `wrap(module)` as the `forward` of each module inside a block.

    A module whose `forward` is replaced already, by another thread, is left as it is.
    """
    replaced = [module for module in modules if "forward" not in vars(module)]
    for module in replaced:
        module.forward = wrap(module)
    try:
        yield
    finally:
        for module in replaced:
            vars(module).pop("forward", None)


@contextmanager
def fast_activations(module: nn.Module) -> Iterator[None]:
    """Make activation functions of a module use tables inside a block, where the bits agree."""
    with replace_forwards(_activations(module), _Fast):
        yield


def _activations(module: nn.Module) -> list[nn.Module]:
    """Return the activation functions of a module that depend only on their input."""
    if module not in _activations_of:
        _activations_of[module] = [child for child in module.modules() if _is_plain(child)]
    return _activations_of[module]


def _is_plain(child: nn.Module) -> bool:
    is_activation = type(child) in _KINDS or type(child).__module__ == "transformers.activations"
    return is_activation and not (child._parameters or child._buffers or child._modules)


class _Fast:
    """An activation function that is replaced by its table where that is possible."""

    def __init__(self, function: nn.Module) -> None:
        self.function = function
        self.forward = function.forward

    def __call__(self, states: Any, *arguments: Any, **keywords: Any) -> Any:
        if not arguments and not keywords and not torch.is_grad_enabled() and _fits(states):
            table = table_of(self.function, self.forward, states.dtype, states.device)
            if table is not None:
                return look_up(states, table)
        return self.forward(states, *arguments, **keywords)


def _fits(states: Any) -> bool:
    """Return True if the kernel supports the states and they are large enough."""
    if not isinstance(states, Tensor) or not states.is_cuda or not _shape_fits(states):
        return False
    return states.numel() >= _FEWEST and shared_memory(states.device.index) >= _BYTES


def _shape_fits(states: Tensor) -> bool:
    return (
        states.dtype in (torch.bfloat16, torch.float16)
        and states.is_contiguous()
        and states.data_ptr() % 16 == 0
        and states.numel() % _EIGHT == 0
        and 0 < states.numel() // _EIGHT < 2**30
    )


def table_of(
    function: nn.Module, forward: Any, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """Return a function's values at all numbers of a type; None if it is no function of single
    numbers. The table is made once."""
    tables = _tables.setdefault(function, {})
    if (dtype, device) not in tables:
        tables[dtype, device] = _make_table(forward, dtype, device)
    return tables[dtype, device]


def _make_table(forward: Any, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    numbers = torch.arange(_VALUES, dtype=torch.int32, device=device).to(torch.int16).view(dtype)
    generator = torch.Generator().manual_seed(0)
    sample = (4 * torch.randn(40, 1024, generator=generator)).to(device, dtype)
    try:
        table = forward(numbers)
        if not isinstance(table, Tensor) or table.dtype != dtype or table.shape != numbers.shape:
            return None
        table = table.contiguous()
        looked_up = look_up(sample, table)
        expected = forward(sample)
        return (
            table
            if expected.dtype == dtype
            and torch.equal(looked_up.view(torch.int16), expected.view(torch.int16))
            else None
        )
    except FAILURES:
        return None


def look_up(states: Tensor, table: Tensor) -> Tensor:
    """Return contiguous half-precision states with every number replaced by its table entry."""
    out = torch.empty_like(states)
    blocks = min(-(-states.numel() // (_EIGHT * _THREADS)), multiprocessors(states.device))
    launch(
        SOURCE, "look_up", blocks, _THREADS, _BYTES, [states, table, out, states.numel() // _EIGHT]
    )
    return out
