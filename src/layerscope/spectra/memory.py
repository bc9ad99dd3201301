"""How much of a GPU's memory a run may use: all that is free, or what it was allowed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from layerscope.core.formatting import describe_size
from layerscope.errors import LayerscopeError

_allowed: int | None = None  # bytes, of every GPU; torch has one allocator per process, so there is one bound


@contextmanager
def memory_bound(limit: int | None) -> Iterator[None]:
    """Inside this block torch takes at most `limit` bytes of a GPU (weights included; the driver's own share comes on top).

    What is done in parts, such as batches and layers that are solved together, is sized by what is left.
    """
    global _allowed
    before = _allowed
    if limit is None:
        yield
        return
    if not torch.cuda.is_available():
        raise LayerscopeError("memory= bounds the memory of a GPU, and none can be used here: leave it out.")
    taken = max(torch.cuda.memory_allocated(index) for index in range(torch.cuda.device_count()))
    if limit <= taken:
        raise LayerscopeError(f"memory= allows {describe_size(limit)}, and {describe_size(taken)} are in use: allow more.")
    _set(limit)
    try:
        yield
    finally:
        _set(before)


def _set(limit: int | None) -> None:
    global _allowed
    _allowed = limit
    for index in range(torch.cuda.device_count()):
        share = 1.0 if limit is None else min(1.0, limit / torch.cuda.mem_get_info(index)[1])
        torch.cuda.set_per_process_memory_fraction(share, index)


def free_memory(device: torch.device | None) -> int:
    """Bytes that are left on a GPU for this process; under a bound, with those that torch holds and does not use."""
    free, _ = torch.cuda.mem_get_info(device)
    taken = torch.cuda.memory_allocated(device)
    unused = torch.cuda.memory_reserved(device) - taken
    return free if _allowed is None else max(0, min(free + unused, _allowed - taken))


def multiprocessors(device: torch.device) -> int:
    """How many of them a GPU has."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def total_memory(device: torch.device | None) -> int:
    """Bytes that this process may use of a GPU, those in use included."""
    _, total = torch.cuda.mem_get_info(device)
    return total if _allowed is None else min(total, _allowed)
