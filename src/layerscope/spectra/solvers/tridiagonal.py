"""Eigenvalues of many float32 matrices on a GPU with kernels of our own: tridiagonal form, then bisection.

cuSOLVER's batched solver spends most of its time where memory bandwidth should be the limit; one thread block per matrix with
deferred updates comes closer to it (docs/scaling.md has the times). Used where NVRTC can compile it and a first solve is right,
for matrices that `small.py` cannot take.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from layerscope.spectra.cuda.kernels import launch, shared_memory
from layerscope.spectra.cuda.libraries import UnusableError
from layerscope.spectra.solvers.bisection_source import halvings
from layerscope.spectra.solvers.tridiagonal_source import PANEL, SOURCE

_COPY_BYTES = 8 * 2**30
_LARGEST_CHECKED = 2e-5


@cache
def largest(index: int) -> int:
    """The largest matrix whose panels fit into a multiprocessor's shared memory."""
    return (shared_memory(index) - 1024) // (4 * (2 * PANEL + 1)) // 4 * 4


class Variant(NamedTuple):
    """How the reduction is compiled for matrices of a size: see the macros of the source."""

    threads: int
    min_blocks: int
    rows: int
    half: int = 0

    @property
    def source(self) -> str:
        """The source with its macros set."""
        names = ("THREADS", "MIN_BLOCKS", "ROWS", "HALF")
        return "".join(f"#define {name} {value}\n" for name, value in zip(names, self, strict=True)) + SOURCE

    def shared(self, n: int) -> int:
        """Bytes of shared memory for matrices of n rows: panels, a vector, and with `half` one more for every warp."""
        width = -(-n // 4) * 4
        return 4 * ((2 * PANEL + 1 + self.half * self.threads // 32) * width + 2 * PANEL + 32)


def variant(n: int, shared: int) -> Variant:
    """The fastest found for matrices of n rows, with so many bytes of shared memory: half of each matrix is read, if they do."""
    if n <= 128:
        return Variant(128, 8, 4)
    whole = Variant(256, 2, 8) if n <= 256 else Variant(512, 1, 8)
    half = whole._replace(half=1)
    return half if half.shared(n) <= shared // half.min_blocks - 1024 else whole


def usable(index: int, n: int = 512) -> str | None:
    """None if the kernels work on a device for matrices of n rows, else why not."""
    how = variant(n, shared_memory(index))
    problem = _tried(index, how)
    return _tried(index, how._replace(half=0)) if problem and how.half else problem


def _chosen(index: int, n: int) -> Variant:
    how = variant(n, shared_memory(index))
    return how._replace(half=0) if how.half and _tried(index, how) else how


@cache
def _tried(index: int, how: Variant) -> str | None:
    """Compile the kernels and try them on matrices with a known answer, once."""
    try:
        n, device = how.threads // 2 + 6, torch.device("cuda", index)
        generator = torch.Generator().manual_seed(0)
        basis = torch.linalg.qr(torch.randn(3, n, n, generator=generator, dtype=torch.float64)).Q
        known = torch.linspace(-1, 3, n, dtype=torch.float64)
        matrices = (basis * known) @ basis.mT
        error = float((eigvalsh(matrices.float().to(device), how=how).cpu() - known).abs().max())
        return None if error < _LARGEST_CHECKED else f"it missed known eigenvalues by {error:.1e}"
    except (UnusableError, OSError, AttributeError, RuntimeError) as problem:
        return str(problem)


def eigvalsh(matrices: Tensor, overwrite: bool = False, how: Variant | None = None) -> Tensor:
    """Eigenvalues, ascending, of symmetric CUDA matrices (batch, n, n), float32. NaN in, NaN out."""
    n = matrices.shape[-1]
    how = how or _chosen(matrices.device.index, n)
    out = matrices.new_empty(matrices.shape[:-1])
    step = max(1, _COPY_BYTES // (4 * n * n))
    for start in range(0, len(matrices), step):
        _solve(matrices[start : start + step], out[start : start + step], overwrite, how)
    return out


def _solve(matrices: Tensor, out: Tensor, overwrite: bool, how: Variant) -> None:
    count, n = out.shape
    width = -(-n // 4) * 4
    # entries of order one: squares of very large or small ones would leave float32
    lowest, highest = torch.aminmax(matrices.flatten(1), dim=-1)
    size = torch.maximum(lowest.abs(), highest.abs())
    by = torch.where(size == 0, 1.0, torch.where(size.isinf(), torch.nan, size))  # NaN stays, and comes out
    if overwrite and width == n and matrices.is_contiguous():
        copy = matrices.div_(by[:, None, None])
    else:
        copy = matrices.new_zeros(count, n, width) if width > n else matrices.new_empty(count, n, n)
        torch.div(matrices, by[:, None, None], out=copy[..., :n])
    diagonal, beside = (matrices.new_empty(count, n) for _ in range(2))
    launch(how.source, "tridiagonal", count, how.threads, how.shared(n), [copy, diagonal, beside, n, width])
    bisect(how, diagonal, beside, by, out)


def bisect(how: Variant, diagonal: Tensor, beside: Tensor, scale: Tensor, out: Tensor) -> None:
    """Eigenvalues, ascending, times `scale`, of tridiagonal matrices (batch, n), of whose `beside` the last entry is not used."""
    count, n = out.shape
    across = min(1024, -(-n // 32) * 32)
    held = 8 * (-(-n // 16) * 16) + 256 + 4 * across
    launch(how.source, "bisect", count, across, held, [diagonal, beside, scale, out, n, halvings(across)])
