"""Choose a solver for a batch of symmetric matrices.

On the CPU, LAPACK threads inside one small matrix fight each other: a batch is split over workers that use one thread
each (2 x faster at n = 128 on two cores). On other devices torch's own batched call is used.
"""

from __future__ import annotations

import torch
from torch import Tensor

from layerscope.spectra.threads import side_by_side

# Above this size one matrix keeps several threads busy by itself, so splitting the batch no longer pays.
_LARGEST_SPLIT = 1536


def solver_name(device: torch.device | str = "cpu") -> str:
    """The solver that `eigvalsh` uses on a device, for a run's manifest."""
    kind = torch.device(device).type
    return "lapack-syevd, one thread per matrix" if kind == "cpu" else f"torch.linalg.eigvalsh on {kind}"


def eigvalsh(matrices: Tensor) -> Tensor:
    """Eigenvalues, ascending, of symmetric matrices with any batch dimensions (..., n, n).

    >>> import torch
    >>> eigvalsh(torch.diag(torch.tensor([3.0, 1.0]))).tolist()
    [1.0, 3.0]
    """
    n = matrices.shape[-1]
    if n == 0 or matrices.numel() == 0:
        return matrices.new_zeros(matrices.shape[:-1])
    if matrices.device.type == "mps":  # no eigen-solver there: the small matrices go to the CPU and back
        return eigvalsh(matrices.cpu()).to(matrices.device)
    workers = torch.get_num_threads()
    flat = matrices.reshape(-1, n, n)
    if matrices.device.type != "cpu" or workers == 1 or len(flat) == 1 or n > _LARGEST_SPLIT:
        return torch.linalg.eigvalsh(matrices)
    parts = flat.chunk(min(workers, len(flat)))
    solved = list(side_by_side("eigenvalues", _solve_single_threaded, parts))
    return torch.cat(solved).reshape(matrices.shape[:-1])


def _solve_single_threaded(part: Tensor) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        return torch.linalg.eigvalsh(part)
