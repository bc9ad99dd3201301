"""Power sums of the spectra of several matrices, with all rows and without some, through
determinants (see `layerscope.spectra.resolvents`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from layerscope.spectra.resolvents import USUAL, Grid, integrate, moments
from layerscope_gpu.resolvents import log_determinants

FINE = Grid(1.0, 40.0, 1e-9)  # exact to 1e-8, for differences of entropies


def sums_without(
    grams: Tensor, members: Sequence[Tensor], grid: Grid = USUAL
) -> tuple[Tensor, Tensor]:
    """Return power sums of matrices (B, n, n), float64: of all rows (B, 4), and without each set of
    rows (B, sets, 4)."""
    traces, squares = moments(grams, members)
    u = _nodes(grams, grid)
    free = torch.cuda.mem_get_info(grams.device)[0] if grams.is_cuda else 2**30
    phi = log_determinants(grams, members, u.exp(), free)
    nodes = u.unsqueeze(1).expand(-1, traces.shape[1], -1)
    sums = integrate(traces, squares, nodes, phi, grid.step)
    return sums[:, 0], sums[:, 1:]


def _nodes(grams: Tensor, grid: Grid) -> Tensor:
    """Return the nodes u = log t of each matrix (B, m), from far below its mean eigenvalue to far
    above its largest.

    The largest is taken as n times the mean, so the host does not wait for it.
    """
    start = (grid.lowest * grams.diagonal(dim1=-2, dim2=-1).mean(-1)).log()
    reach = math.log(grid.highest / grid.lowest * grams.shape[-1])
    nodes = torch.arange(math.ceil(reach / grid.step) + 2, dtype=start.dtype, device=grams.device)
    return start.unsqueeze(-1) + grid.step * nodes
