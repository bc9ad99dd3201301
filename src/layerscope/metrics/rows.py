"""Row preparation: what is done to the rows of Z before its Gram matrix is formed."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

RowPreparation = Literal["raw", "unit", "centered", "centered-unit"]
ROW_PREPARATIONS: tuple[RowPreparation, ...] = get_args(RowPreparation)


def zero_row_floor(norms: Tensor, dtype: torch.dtype) -> Tensor:
    """Length under which a centred row is rounding noise of a row of length `norms` stored as `dtype`.

    A row that equals the mean has no direction; dividing its noise by its length would invent one.
    """
    eps = max(torch.finfo(dtype).eps, 16 * torch.finfo(torch.float64).eps) if dtype.is_floating_point else 0.0
    return norms * eps


def check_rows(rows: str) -> None:
    """A ValueError unless it names a row preparation."""
    if rows not in ROW_PREPARATIONS:
        raise ValueError(f"rows must be one of {', '.join(ROW_PREPARATIONS)}, not {rows!r}")


def prepare_rows(z: Tensor, rows: RowPreparation, mean: Tensor | None = None) -> Tensor:
    """Rows of (..., N, D) as `rows` says; rows without a direction become zero.

    `centered-unit` (subtract the mean row, then scale to length 1) follows Wei et al. 2024. `mean` overrides the mean
    row of this block, for data that comes in blocks.
    """
    check_rows(rows)
    if rows == "raw":
        return z
    if not z.is_floating_point():
        z = z.double()
    out = z
    floor = torch.zeros((), dtype=z.dtype, device=z.device)
    if rows.startswith("centered"):
        out = z - (z.mean(-2, keepdim=True) if mean is None else mean)
        floor = zero_row_floor(torch.linalg.vector_norm(z, dim=-1, keepdim=True), z.dtype)
    norms = torch.linalg.vector_norm(out, dim=-1, keepdim=True)
    return torch.where(norms > floor, out / norms if rows.endswith("unit") else out, torch.zeros_like(out))
