"""How matrices are computed: precision, threads, transfers, and what memory a GPU has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor


@contextmanager
def _switched(**wanted: Any) -> Iterator[None]:
    """Settings of torch's products on a GPU inside this block."""
    switch: Any = torch.backends.cuda.matmul
    before = {name: getattr(switch, name) for name in wanted}
    for name, value in wanted.items():
        setattr(switch, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(switch, name, value)


def full_precision(full: bool = True) -> AbstractContextManager[None]:
    """Products of float32 matrices with all their digits (or, with `full=False`, through TF32)
    inside a block."""
    if not torch.cuda.is_available():
        return nullcontext()
    try:
        set_already = torch.backends.cuda.matmul.allow_tf32 is not full
    except (
        RuntimeError
    ):  # torch has two ways to say it, and refuses this one where the user has used the other
        return _switched(fp32_precision="ieee" if full else "tf32")
    return nullcontext() if set_already else _switched(allow_tf32=not full)


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A tensor of the host on a device; a GPU copies from pinned memory, so that the host does not
    wait for the transfer.

    >>> to_device(torch.tensor([1, 2]), "cpu").tolist()
    [1, 2]
    """
    if torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


T = TypeVar("T")
R = TypeVar("R")

_lock = threading.Lock()
_pools: dict[tuple[str, int], ThreadPoolExecutor] = {}


def workers_pool(purpose: str, workers: int | None = None) -> ThreadPoolExecutor:
    """Workers that use one thread each. `purpose` separates work that waits for other work: a
    single pool would deadlock."""
    count = workers or torch.get_num_threads()
    with _lock:
        if (purpose, count) not in _pools:
            # `set_num_threads` is per thread under OpenMP: the workers' setting leaves the caller's
            # alone.
            _pools[purpose, count] = ThreadPoolExecutor(
                count,
                thread_name_prefix=f"layerscope-{purpose}",
                initializer=torch.set_num_threads,
                initargs=(1,),
            )
        return _pools[purpose, count]


def map_concurrently(
    purpose: str, function: Callable[[T], R], items: Iterable[T], most: int | None = None
) -> Iterator[R]:
    """Results in order, computed by as many single-threaded workers as the caller has threads,
    `most` at most."""
    threads = torch.get_num_threads()
    return workers_pool(purpose, threads if most is None else min(threads, most)).map(
        function, items
    )


def free_memory(device: torch.device | None) -> int:
    """Bytes that are left on a GPU."""
    return torch.cuda.mem_get_info(device)[0]


def multiprocessors(device: torch.device) -> int:
    """How many of them a GPU has."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def total_memory(device: torch.device | None) -> int:
    """Bytes of a GPU, those in use included."""
    return torch.cuda.mem_get_info(device)[1]
