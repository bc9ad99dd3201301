"""The settings that change a metric's value, stored with every result, and how rows are prepared
before a Gram matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

__all__ = ["RowPreparation"]

RowPreparation = Literal["raw", "unit", "centered", "centered-unit"]
ROW_PREPARATIONS: tuple[RowPreparation, ...] = get_args(RowPreparation)


@dataclass(frozen=True)
class Options:
    """Settings of the metrics; the defaults are layerscope's.

    The last five are conventions of the released code of *Layer by Layer* (Skean et al., 2025).
    """

    alpha: float = 1.0
    rows: RowPreparation = "centered-unit"  # token states, for prompt entropy
    pooled_rows: RowPreparation = "centered-unit"  # for dataset entropy and the ranks
    view_rows: RowPreparation = "unit"  # pooled vectors of the views, for InfoNCE and DiME
    lidar_rows: RowPreparation = "raw"
    temperature: float = 0.1  # InfoNCE
    delta: float = 1e-4  # added to the diagonal of LiDAR's within-prompt scatter
    permutations: int = 10  # DiME
    dime_samples: int = 1000  # DiME's cost grows with the cube of this
    seed: int = 0
    clamp_gram: bool = False  # negative Gram entries set to zero before the entropy
    curvature_absolute: bool = False  # |cos| instead of cos between successive differences
    infonce_one_way: bool = False  # N x N logits from view 1 to view 2, not NT-Xent over both
    dime_feature_side: bool = False  # D x D covariances when N > D
    group: int | None = None  # center pooled vectors inside groups of this many prompts


def zero_row_floor(norms: Tensor, dtype: torch.dtype) -> Tensor:
    """Length under which a centered row is rounding noise of a row of length `norms` stored as
    `dtype`.

    A row that equals the mean has no direction; dividing its noise by its length would invent one.
    """
    eps = (
        max(torch.finfo(dtype).eps, 16 * torch.finfo(torch.float64).eps)
        if dtype.is_floating_point
        else 0.0
    )
    return norms * eps


def check_rows(rows: str) -> None:
    """Raise a ValueError unless `rows` names a row preparation."""
    if rows not in ROW_PREPARATIONS:
        raise ValueError(f"rows must be one of {', '.join(ROW_PREPARATIONS)}, not {rows!r}")


def prepare_rows(z: Tensor, rows: RowPreparation, mean: Tensor | None = None) -> Tensor:
    """Return rows of (..., N, D) as `rows` says; rows without a direction become zero.

    `centered-unit` (subtract the mean row, then scale to length 1) follows Wei et al. 2024. `mean`
    overrides the mean row of this block, for data that comes in blocks.
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
    return torch.where(
        norms > floor, out / norms if rows.endswith("unit") else out, torch.zeros_like(out)
    )
