"""Eigenvalues of many symmetric matrices, per device, and how matrices are computed there.

On the CPU, LAPACK threads inside one small matrix slow each other down: a batch is split over
workers that use one thread each (2 x faster at n = 128 on two cores). On a GPU: the solvers of an
accelerator where one is installed, else torch's own call; a run's manifest names the solver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from layerscope import accelerator

__all__ = [
    "eigvalsh",
    "free_memory",
    "full_precision",
    "map_concurrently",
    "solvers_used",
    "to_device",
]

# Above this size one matrix keeps several threads busy by itself, so splitting the batch no longer
# pays.
_LARGEST_SPLIT = 1536

T = TypeVar("T")
R = TypeVar("R")

_lock = threading.Lock()
_pools: dict[tuple[str, int], ThreadPoolExecutor] = {}


def eigvalsh(matrices: Tensor, overwrite: bool = False) -> Tensor:
    """Return eigenvalues, ascending, of symmetric matrices with any batch dimensions (..., n, n).

    `overwrite` allows a solver to work in the matrices themselves instead of a copy.

    >>> import torch
    >>> eigvalsh(torch.diag(torch.tensor([3.0, 1.0]))).tolist()
    [1.0, 3.0]
    """
    n = matrices.shape[-1]
    if matrices.numel() == 0:
        return matrices.new_zeros(matrices.shape[:-1])
    if matrices.device.type == "mps":  # no eigen-solver there
        return eigvalsh(matrices.cpu()).to(matrices.device)
    flat = matrices.reshape(-1, n, n)
    gpu = accelerator.on(matrices.device)
    if gpu is not None:
        return gpu.eigvalsh(flat, overwrite).reshape(matrices.shape[:-1])
    workers = torch.get_num_threads()
    if matrices.device.type != "cpu" or workers == 1 or len(flat) == 1 or n > _LARGEST_SPLIT:
        return torch.linalg.eigvalsh(matrices)
    solved = map_concurrently(
        "eigenvalues", _solve_single_threaded, flat.chunk(min(workers, len(flat)))
    )
    return torch.cat(list(solved)).reshape(matrices.shape[:-1])


def _solve_single_threaded(matrices: Tensor) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        return torch.linalg.eigvalsh(matrices)


def solvers_used(device: torch.device | str = "cpu") -> str:
    """Return the solvers that `eigvalsh` used on a device since the last call, for a run's
    manifest."""
    device = torch.device(device)
    gpu = accelerator.on(device)
    if gpu is not None:
        index = device.index
        return gpu.solvers_used(torch.cuda.current_device() if index is None else index)
    if device.type == "cpu":
        return "lapack-syevd, one thread per matrix"
    return f"torch.linalg.eigvalsh on {device.type}"


def map_concurrently(
    purpose: str, function: Callable[[T], R], items: Iterable[T], most: int | None = None
) -> Iterator[R]:
    """Yield results in order, computed by as many single-threaded workers as the caller has
    threads, `most` at most.

    `purpose` separates work that waits for other work: a single pool would deadlock.
    """
    threads = torch.get_num_threads()
    count = threads if most is None else min(threads, most)
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
        pool = _pools[purpose, count]
    return pool.map(function, items)


def full_precision(full: bool = True) -> AbstractContextManager[None]:
    """Compute products of float32 matrices with all their digits (or, with `full=False`, through
    TF32) inside a block."""
    if not torch.cuda.is_available():
        return nullcontext()
    try:
        is_set = torch.backends.cuda.matmul.allow_tf32 is not full
    except RuntimeError:
        # torch has two ways to say it, and refuses this one where the user has used the other
        return _switched("fp32_precision", "ieee" if full else "tf32")
    return nullcontext() if is_set else _switched("allow_tf32", not full)


@contextmanager
def _switched(name: str, value: Any) -> Iterator[None]:
    """Set one of torch's settings of products on a GPU inside a block."""
    switch: Any = torch.backends.cuda.matmul
    before = getattr(switch, name)
    setattr(switch, name, value)
    try:
        yield
    finally:
        setattr(switch, name, before)


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Return a tensor of the host on a device.

    A GPU copies from pinned memory, so that the host does not wait for the transfer.

    >>> to_device(torch.tensor([1, 2]), "cpu").tolist()
    [1, 2]
    """
    if torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def free_memory(device: torch.device | None) -> int:
    """Return the bytes that are free on a GPU."""
    return torch.cuda.mem_get_info(device)[0]
