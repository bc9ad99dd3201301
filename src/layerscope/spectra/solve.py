"""Choose a solver for a batch of symmetric matrices.

On the CPU, LAPACK threads inside one small matrix slow each other down: a batch is split over
workers that use one thread each (2 x faster at n = 128 on two cores). On a GPU: the solvers of an
accelerator where one is installed, else torch's own call; a run's manifest names the solver.
"""

from __future__ import annotations

import torch
from torch import Tensor

from layerscope import accelerator
from layerscope.spectra.execution import map_concurrently

# Above this size one matrix keeps several threads busy by itself, so splitting the batch no longer
# pays.
_LARGEST_SPLIT = 1536
_LAPACK = "lapack-syevd, one thread per matrix"


def solvers_used(device: torch.device | str = "cpu") -> str:
    """The solvers that `eigvalsh` has used on a device since this was last asked, for a run's
    manifest. It compiles nothing."""
    where = torch.device(device)
    gpu = accelerator.on(where)
    return _without_package(where) if gpu is None else gpu.solvers_used(_index_of(where))


def usable_solvers(device: torch.device | str = "cpu") -> str:
    """The solvers that work on a device. All of them are tried, which takes seconds where a kernel
    has not been compiled yet."""
    where = torch.device(device)
    gpu = accelerator.on(where) if torch.cuda.is_available() else None
    return _without_package(where) if gpu is None else gpu.usable_solvers(_index_of(where))


def _without_package(device: torch.device) -> str:
    return _LAPACK if device.type == "cpu" else f"torch.linalg.eigvalsh on {device.type}"


def _index_of(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def eigvalsh(matrices: Tensor, overwrite: bool = False) -> Tensor:
    """Eigenvalues, ascending, of symmetric matrices with any batch dimensions (..., n, n).

    `overwrite` allows a solver to work in the matrices themselves instead of a copy.

    >>> import torch
    >>> eigvalsh(torch.diag(torch.tensor([3.0, 1.0]))).tolist()
    [1.0, 3.0]
    """
    n = matrices.shape[-1]
    if n == 0 or matrices.numel() == 0:
        return matrices.new_zeros(matrices.shape[:-1])
    if (
        matrices.device.type == "mps"
    ):  # no eigen-solver there: the small matrices go to the CPU and back
        return eigvalsh(matrices.cpu()).to(matrices.device)
    flat = matrices.reshape(-1, n, n)
    gpu = accelerator.on(matrices.device)
    if gpu is not None:
        solved: Tensor = gpu.eigvalsh(flat, overwrite)
        return solved.reshape(matrices.shape[:-1])
    workers = torch.get_num_threads()
    if matrices.device.type != "cpu" or workers == 1 or len(flat) == 1 or n > _LARGEST_SPLIT:
        return torch.linalg.eigvalsh(matrices)
    parts = flat.chunk(min(workers, len(flat)))
    return torch.cat(list(map_concurrently("eigenvalues", _solve_single_threaded, parts))).reshape(
        matrices.shape[:-1]
    )


def _solve_single_threaded(part: Tensor) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        return torch.linalg.eigvalsh(part)
