"""Eigenvalues of many small float32 matrices (up to 192 rows) on a GPU with a kernel that keeps each matrix in registers.

It reads the matrices once and writes eigenvalues, nothing else: scaling, reduction to tridiagonal form and bisection happen in
one thread block per matrix. Used where NVRTC can compile it and a first solve is right; `tridiagonal.py` takes over otherwise.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from layerscope.spectra.cuda.kernels import launch
from layerscope.spectra.cuda.libraries import UnusableError
from layerscope.spectra.solvers.bisection_source import halvings
from layerscope.spectra.solvers.small_source import SOURCE

_LARGEST_CHECKED = 2e-5


class Variant(NamedTuple):
    """How the kernel is compiled: threads per matrix (8 across), tiles of registers per thread, blocks per multiprocessor."""

    threads: int
    tiles: int
    min_blocks: int

    @property
    def largest(self) -> int:
        """The largest matrix it can take."""
        return self.tiles * max(8, self.threads // 8)

    @property
    def source(self) -> str:
        """The source with its macros set."""
        names = ("THREADS", "TILES", "MIN_BLOCKS")
        return "".join(f"#define {name} {value}\n" for name, value in zip(names, self, strict=True)) + SOURCE

    @property
    def steps(self) -> int:
        """Halvings of an interval, after a look at as many points as there are threads (or, of more, eigenvalues)."""
        return halvings(max(self.threads, self.largest))


# As many warps as registers allow: three for each of a multiprocessor's four schedulers with tiles of 128 entries.
VARIANTS = (Variant(32, 4, 20), Variant(32, 8, 12), Variant(128, 6, 4), Variant(128, 8, 3), Variant(256, 6, 1))
LARGEST = VARIANTS[-1].largest


def variant(n: int) -> Variant:
    """The one for matrices of n rows."""
    return next(one for one in VARIANTS if n <= one.largest)


def usable(index: int, n: int) -> str | None:
    """None if the kernel works on a device for matrices of n rows, else why not."""
    return _tried(index, variant(n)) if n <= LARGEST else f"it takes matrices of up to {LARGEST} rows"


@cache
def _tried(index: int, how: Variant) -> str | None:
    """Compile the kernel and try it on matrices with a known answer, once."""
    try:
        n, device = how.largest - 3, torch.device("cuda", index)
        generator = torch.Generator().manual_seed(0)
        basis = torch.linalg.qr(torch.randn(3, n, n, generator=generator, dtype=torch.float64)).Q
        known = torch.linspace(-1, 3, n, dtype=torch.float64)
        matrices = (basis * known) @ basis.mT
        error = float((eigvalsh(matrices.float().to(device), how).cpu() - known).abs().max())
        return None if error < _LARGEST_CHECKED else f"it missed known eigenvalues by {error:.1e}"
    except (UnusableError, OSError, AttributeError, RuntimeError) as problem:
        return str(problem)


def eigvalsh(matrices: Tensor, how: Variant | None = None) -> Tensor:
    """Eigenvalues, ascending, of symmetric CUDA matrices (batch, n, n), float32, which stay as they are. NaN in, NaN out."""
    count, n = matrices.shape[:2]
    how = how or variant(n)
    out = matrices.new_empty(count, n)
    launch(how.source, "small_eigenvalues", count, how.threads, 0, [matrices.contiguous(), out, n, how.steps])
    return out
