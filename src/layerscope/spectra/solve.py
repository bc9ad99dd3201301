"""Choose a solver for a batch of symmetric matrices.

On the CPU, LAPACK threads inside one small matrix slow each other down: a batch is split over workers that use one thread
each (2 x faster at n = 128 on two cores). On CUDA: kernels of our own for small float32 matrices and for larger ones in
batches, cuSOLVER's batched solver for the rest, and torch's own call where neither can be used (a warning says so once, and a
run's manifest names the solver).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor

from layerscope.spectra.cuda import UnusableError, shared_memory
from layerscope.spectra.execution import map_concurrently
from layerscope.spectra.solvers import band, cusolver, small, tridiagonal

# Above this size one matrix keeps several threads busy by itself, so splitting the batch no longer pays.
_LARGEST_SPLIT = 1536
# One thread block per matrix: with fewer matrices than this the chip would be mostly idle, and cuSOLVER is faster.
_FEWEST_FOR_KERNEL = 16


_LAPACK = "lapack-syevd, one thread per matrix"
_REGISTERS = "own register kernel (small float32 matrices)"
_BANDS = f"own band kernels (float32 batches up to {band.LARGEST} rows)"
_TRIDIAGONAL = "own tridiagonal kernel (float32 batches)"
_CUSOLVER = "cusolverDnXsyevBatched"

_used: dict[int, set[str]] = {}  # by CUDA device


def solvers_used(device: torch.device | str = "cpu") -> str:
    """The solvers that `eigvalsh` has used on a device so far in this process, for a run's manifest. It compiles nothing."""
    where = torch.device(device)
    if where.type == "cpu":
        return _LAPACK
    if where.type == "cuda":
        used = _used.get(_index_of(where), set())
        return ", ".join(sorted(used)) if used else "none"
    return f"torch.linalg.eigvalsh on {where.type}"


def _index_of(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def usable_solvers(device: torch.device | str = "cpu") -> str:
    """The solvers that work on a device. All of them are tried, which takes seconds where a kernel has not been compiled yet."""
    where = torch.device(device)
    if where.type == "cpu":
        return _LAPACK
    if where.type == "cuda" and torch.cuda.is_available():
        index = _index_of(where)
        names = []
        if small.usable(index, 128) is None:
            names.append(_REGISTERS)
        if band.usable(index) is None:
            names.append(_BANDS)
        if tridiagonal.usable(index) is None:
            names.append(_TRIDIAGONAL)
        if _cusolver_problem(index) is None:
            names.append(_CUSOLVER)
        if names:
            return ", ".join(names)
    return f"torch.linalg.eigvalsh on {where.type}"


def kernel_source(n: int, index: int, rough: bool = False) -> str | None:
    """The source of the kernel that float32 matrices of n rows go to on a CUDA device; None if they are too large for one."""
    if n <= small.LARGEST:
        return small.variant(n).source
    if n <= band.LARGEST:
        return band.variant(n, rough).source
    return tridiagonal.variant(n, shared_memory(index)).source if n <= tridiagonal.largest(index) else None


def eigvalsh(matrices: Tensor, overwrite: bool = False, rough: bool = False) -> Tensor:
    """Eigenvalues, ascending, of symmetric matrices with any batch dimensions (..., n, n).

    `overwrite` allows a solver to work in the matrices themselves instead of a copy; `rough` one that loses a few of the last
    digits of float32.

    >>> import torch
    >>> eigvalsh(torch.diag(torch.tensor([3.0, 1.0]))).tolist()
    [1.0, 3.0]
    """
    n = matrices.shape[-1]
    if n == 0 or matrices.numel() == 0:
        return matrices.new_zeros(matrices.shape[:-1])
    if matrices.device.type == "mps":  # no eigen-solver there: the small matrices go to the CPU and back
        return eigvalsh(matrices.cpu()).to(matrices.device)
    flat = matrices.reshape(-1, n, n)
    if matrices.device.type == "cuda":
        return _on_cuda(flat, overwrite, rough).reshape(matrices.shape[:-1])
    workers = torch.get_num_threads()
    if matrices.device.type != "cpu" or workers == 1 or len(flat) == 1 or n > _LARGEST_SPLIT:
        return torch.linalg.eigvalsh(matrices)
    parts = flat.chunk(min(workers, len(flat)))
    solved = list(map_concurrently("eigenvalues", _solve_single_threaded, parts))
    return torch.cat(solved).reshape(matrices.shape[:-1])


def solve_together(batches: Sequence[Tensor], overwrite: bool = False, rough: bool = False) -> list[Tensor]:
    """`eigvalsh` of several batches of different sizes; side by side on a GPU, most of which a small one would leave idle."""
    if not batches or not batches[0].is_cuda:
        return [eigvalsh(batch, overwrite, rough) for batch in batches]
    main = torch.cuda.current_stream(batches[0].device)
    beside, solved = [torch.cuda.Stream(batches[0].device) for _ in batches], []
    for stream, batch in zip(beside, batches, strict=True):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            solved.append(eigvalsh(batch, overwrite, rough))
    for stream, values in zip(beside, solved, strict=True):
        main.wait_stream(stream)
        values.record_stream(main)
    return solved


def joined(parts: Sequence[Tensor]) -> Tensor:
    """`torch.cat` along the first dimension; parts that lie in memory one after the other are joined as they are.

    On a GPU others go through plain copies (cat's kernel is far below memory speed).
    """
    if len(parts) == 1:
        return parts[0]
    if all(_follows(part, after) for part, after in pairwise(parts)):
        return parts[0].as_strided((sum(len(part) for part in parts), *parts[0].shape[1:]), parts[0].stride())
    if not parts[0].is_cuda:
        return torch.cat(list(parts))
    out = parts[0].new_empty(sum(len(part) for part in parts), *parts[0].shape[1:])
    for target, part in zip(out.split([len(part) for part in parts]), parts, strict=True):
        target.copy_(part)
    return out


def _follows(part: Tensor, after: Tensor) -> bool:
    """Whether one tensor begins where the other ends, in the same memory."""
    return (
        part.is_contiguous()
        and after.is_contiguous()
        and part.dtype == after.dtype
        and part.shape[1:] == after.shape[1:]
        and part.untyped_storage().data_ptr() == after.untyped_storage().data_ptr()
        and part.storage_offset() + part.numel() == after.storage_offset()
    )


def _solve_single_threaded(part: Tensor) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        return torch.linalg.eigvalsh(part)


def _on_cuda(flat: Tensor, overwrite: bool, rough: bool = False) -> Tensor:
    index = flat.device.index
    assert index is not None
    used = _used.setdefault(index, set())
    if flat.dtype == torch.float32 and small.usable(index, flat.shape[-1]) is None:
        used.add(_REGISTERS)
        return small.eigvalsh(flat)
    many = flat.dtype == torch.float32 and len(flat) >= _FEWEST_FOR_KERNEL
    n = flat.shape[-1]
    if many and band.usable(index, n, rough) is None:
        used.add(_BANDS)
        return band.eigvalsh(flat, overwrite, band.variant(n, rough))
    if many and flat.shape[-1] <= tridiagonal.largest(index) and tridiagonal.usable(index, flat.shape[-1]) is None:
        used.add(_TRIDIAGONAL)
        return tridiagonal.eigvalsh(flat, overwrite)
    problem = _cusolver_problem(index)
    if problem is None:
        used.add(_CUSOLVER)
        return cusolver.eigvalsh(flat, overwrite)
    _say_once(problem)
    used.add("torch.linalg.eigvalsh on cuda")
    return torch.linalg.eigvalsh(flat)


@cache
def _cusolver_problem(index: int) -> str | None:
    """None if cuSOLVER's batched solver works on a device, else why not."""
    try:
        solved = cusolver.eigvalsh(torch.diag(torch.tensor([3.0, 1.0])).to(torch.device("cuda", index)).unsqueeze(0))
        return None if torch.allclose(solved.cpu(), torch.tensor([[1.0, 3.0]])) else "it gives wrong eigenvalues here"
    except (UnusableError, OSError, AttributeError, RuntimeError) as problem:
        return str(problem)


@cache
def _say_once(problem: str) -> None:
    warnings.warn(
        f"cuSOLVER's batched eigen-solver cannot be used ({problem}): torch.linalg.eigvalsh takes its place, which is "
        "50 to 300 times slower for small matrices.",
        stacklevel=2,
    )
