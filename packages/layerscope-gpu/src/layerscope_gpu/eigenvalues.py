"""Eigenvalues of batches of symmetric matrices on a GPU: which solver takes which matrices.

Small float32 matrices, and larger ones in batches, go to kernels of our own; the rest to cuSOLVER's
batched solver, and to torch's own call where neither can be used (a warning says so once).
"""

from __future__ import annotations

import warnings
from functools import cache

import torch
from torch import Tensor

from layerscope_gpu.cuda import UnusableError, shared_memory
from layerscope_gpu.solvers import band, cusolver, determinants, small, tridiagonal

# One thread block per matrix: with fewer matrices than this the chip would be mostly idle, and
# cuSOLVER is faster.
_FEWEST_FOR_KERNEL = 16

_REGISTERS = "own register kernel (small float32 matrices)"
_BANDS = f"own band kernels (float32 batches up to {band.LARGEST} rows)"
_DETERMINANTS = (
    f"own determinants of bands (entropies of float32 batches up to {band.LARGEST} rows)"
)
_TRIDIAGONAL = "own tridiagonal kernel (float32 batches)"
_CUSOLVER = "cusolverDnXsyevBatched"
_TORCH = "torch.linalg.eigvalsh on cuda"

_used: dict[int, set[str]] = {}  # by CUDA device


def solvers_used(index: int) -> str:
    """The solvers that `eigvalsh` has used on a GPU since this was last asked. It compiles
    nothing."""
    return ", ".join(sorted(_used.pop(index, ()))) or "none"


def usable_solvers(index: int) -> str:
    """The solvers that work on a GPU. All of them are tried, which takes seconds where a kernel has
    not been compiled yet."""
    names = []
    if small.usable(index, 128) is None:
        names.append(_REGISTERS)
    if band.usable(index) is None:
        names.append(_BANDS)
    if tridiagonal.usable(index) is None:
        names.append(_TRIDIAGONAL)
    if _cusolver_problem(index) is None:
        names.append(_CUSOLVER)
    return ", ".join(names) or _TORCH


def kernel_source(n: int, index: int) -> str | None:
    """The source of the kernel that float32 matrices of n rows go to on a GPU; None if they are too
    large for one."""
    if n <= small.LARGEST:
        return small.variant(n).source
    if n <= band.LARGEST:
        return band.variant(n).source
    return (
        tridiagonal.variant(n, shared_memory(index)).source
        if n <= tridiagonal.largest(index)
        else None
    )


def entropy_source(n: int, index: int) -> str | None:
    """The source of the kernels that `exact_entropy` needs for float32 matrices of n rows on a GPU;
    None if it needs none."""
    return (
        determinants.source(band.variant(n))
        if band.SMALLEST <= n <= band.LARGEST
        else kernel_source(n, index)
    )


def exact_entropy(matrices: Tensor, overwrite: bool = False) -> Tensor | None:
    """−Σ p log p, p = λ / Σλ, of positive semidefinite matrices (batch, n, n), float64; None where
    eigenvalues are the way.

    By determinants, to 2e-6 nats and the rounding of float32: in half the time of eigenvalues at
    512 rows. `overwrite` allows the matrices to be destroyed. NaN where all eigenvalues are zero.
    """
    n, index = matrices.shape[-1], matrices.device.index
    if (
        not matrices.is_cuda
        or matrices.dtype != torch.float32
        or len(matrices) < _FEWEST_FOR_KERNEL
    ):
        return None
    if determinants.usable(index, n) is not None:
        return None
    _used.setdefault(index, set()).add(_DETERMINANTS)
    return determinants.entropy(matrices, band.variant(n), overwrite)


def eigvalsh(matrices: Tensor, overwrite: bool = False) -> Tensor:
    """Eigenvalues, ascending, of symmetric matrices (..., n, n), float32 or float64; those of a CPU
    are left to torch.

    `overwrite` allows a solver to work in the matrices themselves instead of a copy. NaN in, NaN
    out.

    >>> eigvalsh(torch.diag(torch.tensor([3.0, 1.0]))).tolist()
    [1.0, 3.0]
    """
    if not matrices.numel():
        return matrices.new_zeros(matrices.shape[:-1])
    if not matrices.is_cuda:
        return torch.linalg.eigvalsh(matrices)
    n = matrices.shape[-1]
    return _on_cuda(matrices.reshape(-1, n, n), overwrite).reshape(matrices.shape[:-1])


def _on_cuda(flat: Tensor, overwrite: bool) -> Tensor:
    index = flat.device.index
    assert index is not None
    used = _used.setdefault(index, set())
    if flat.dtype == torch.float32 and small.usable(index, flat.shape[-1]) is None:
        used.add(_REGISTERS)
        return small.eigvalsh(flat)
    many = flat.dtype == torch.float32 and len(flat) >= _FEWEST_FOR_KERNEL
    n = flat.shape[-1]
    if many and band.usable(index, n) is None:
        used.add(_BANDS)
        return band.eigvalsh(flat, overwrite)
    if (
        many
        and flat.shape[-1] <= tridiagonal.largest(index)
        and tridiagonal.usable(index, flat.shape[-1]) is None
    ):
        used.add(_TRIDIAGONAL)
        return tridiagonal.eigvalsh(flat, overwrite)
    problem = _cusolver_problem(index)
    if problem is None:
        used.add(_CUSOLVER)
        return cusolver.eigvalsh(flat, overwrite)
    _say_once(problem)
    used.add(_TORCH)
    return torch.linalg.eigvalsh(flat)


@cache
def _cusolver_problem(index: int) -> str | None:
    """None if cuSOLVER's batched solver works on a device, else why not."""
    try:
        solved = cusolver.eigvalsh(
            torch.diag(torch.tensor([3.0, 1.0])).to(torch.device("cuda", index)).unsqueeze(0)
        )
        return (
            None
            if torch.allclose(solved.cpu(), torch.tensor([[1.0, 3.0]]))
            else "it gives wrong eigenvalues here"
        )
    except (UnusableError, OSError, AttributeError, RuntimeError) as problem:
        return str(problem)


@cache
def _say_once(problem: str) -> None:
    warnings.warn(
        f"cuSOLVER's batched eigen-solver cannot be used ({problem}): torch.linalg.eigvalsh takes its place, which is "
        "50 to 300 times slower for small matrices.",
        stacklevel=2,
    )
