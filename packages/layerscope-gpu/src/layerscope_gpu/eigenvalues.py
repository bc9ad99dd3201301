"""Eigenvalues of batches of symmetric matrices on a GPU, and the choice of their solver.

Float32 matrices of up to 192 rows, and batches of up to 1,024 rows, go to kernels of this package.
Others go to cuSOLVER's batched solver, and to torch's own call where that cannot be used (a warning
says so once).
"""

from __future__ import annotations

import warnings
from functools import cache

import torch
from torch import Tensor

from layerscope_gpu.cuda import FAILURES
from layerscope_gpu.solvers import band, cusolver, determinants, small

# One thread block per matrix: with fewer matrices than this the chip would be mostly idle, and
# cuSOLVER is faster.
_FEWEST_FOR_KERNEL = 16

_REGISTERS = "own register kernel (small float32 matrices)"
_BANDS = f"own band kernels (float32 batches up to {band.LARGEST} rows)"
_DETERMINANTS = (
    f"own determinants of bands (entropies of float32 batches up to {band.LARGEST} rows)"
)
_CUSOLVER = "cusolverDnXsyevBatched"
_TORCH = "torch.linalg.eigvalsh on cuda"

_used: dict[int, set[str]] = {}  # by CUDA device


def solvers_used(index: int) -> str:
    """Return the solvers that were used on a GPU since the last call. This compiles nothing."""
    return ", ".join(sorted(_used.pop(index, ()))) or "none"


def kernel_source(n: int) -> str | None:
    """Return the source of the kernel for float32 matrices of n rows, None if there is none."""
    if n <= small.LARGEST:
        return small.best_variant(n).source
    if n <= band.LARGEST:
        return band.best_variant(n).source
    return None


def entropy_source(n: int) -> str | None:
    """Return the source of the kernels of `exact_entropy` for n rows, None if there are none."""
    if band.SMALLEST <= n <= band.LARGEST:
        return determinants.source(band.best_variant(n))
    return kernel_source(n)


def exact_entropy(matrices: Tensor, overwrite: bool = False) -> Tensor | None:
    """Return −Σ p log p, p = λ / Σλ, of positive semidefinite matrices (batch, n, n), float64.

    It comes from determinants, to 2e-6 nats and the rounding of float32, in half the time of
    eigenvalues at 512 rows. `overwrite` allows the matrices to be destroyed. NaN where all
    eigenvalues are zero. Returns None where eigenvalues are the way.
    """
    if not _goes_to_kernel(matrices):
        return None
    n = matrices.shape[-1]
    index = matrices.device.index
    if determinants.usable(index, n) is not None:
        return None
    _used.setdefault(index, set()).add(_DETERMINANTS)
    return determinants.entropy(matrices, band.best_variant(n), overwrite)


def _goes_to_kernel(matrices: Tensor) -> bool:
    """Return True for batches that are large enough for a kernel, which takes float32 on a GPU."""
    is_batch = len(matrices) >= _FEWEST_FOR_KERNEL
    return is_batch and matrices.is_cuda and matrices.dtype == torch.float32


def eigvalsh(matrices: Tensor, overwrite: bool = False) -> Tensor:
    """Return eigenvalues, ascending, of symmetric matrices (..., n, n), float32 or float64.

    `overwrite` allows a solver to work in the matrices themselves instead of a copy. NaN in, NaN
    out. Matrices of a CPU are left to torch.

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
    n = flat.shape[-1]
    used = _used.setdefault(index, set())
    if flat.dtype == torch.float32 and small.usable(index, n) is None:
        used.add(_REGISTERS)
        return small.eigvalsh(flat)
    if _goes_to_kernel(flat) and band.usable(index, n) is None:
        used.add(_BANDS)
        return band.eigvalsh(flat, overwrite)
    problem = _cusolver_problem(index)
    if problem is None:
        used.add(_CUSOLVER)
        return cusolver.eigvalsh(flat, overwrite)
    _warn_once(problem)
    used.add(_TORCH)
    return torch.linalg.eigvalsh(flat)


@cache
def _cusolver_problem(index: int) -> str | None:
    """Return None if cuSOLVER's batched solver works on a device, else the reason."""
    matrices = torch.diag(torch.tensor([3.0, 1.0])).unsqueeze(0)
    try:
        solved = cusolver.eigvalsh(matrices.to(torch.device("cuda", index))).cpu()
    except FAILURES as problem:
        return str(problem)
    if torch.allclose(solved, torch.tensor([[1.0, 3.0]])):
        return None
    return "it gives wrong eigenvalues here"


@cache
def _warn_once(problem: str) -> None:
    warnings.warn(
        f"cuSOLVER's batched eigen-solver cannot be used ({problem}): torch.linalg.eigvalsh takes "
        "its place, which is 50 to 300 times slower for small matrices.",
        stacklevel=2,
    )
