"""The settings of metrics, how rows are prepared before a Gram matrix, and the vectors of all
prompts at one site, in the order of the prompts' keys.

Where random draws meet prompts (permutations, resamples, folds), they follow this order. Keys are
hashes of the texts, so the order is random, and the same whatever the order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "FOLDS",
    "RowPreparation",
    "SiteVectors",
    "doubles",
    "n_folds",
    "prepared_view",
]

T = TypeVar("T")

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


BLOCK_ROWS = 4096
"""Rows that are turned into float64 at a time, where no more are needed together."""

# Standard errors of spectral quantities leave out one fold of prompts at a time. A spectrum is far
# from linear in the weight of one prompt when N ≤ D, and a resample with replacement has a lower
# rank than the data; leaving prompts out has neither fault (docs/decisions/intervals.md).
FOLDS = 20


def n_folds(n: int) -> int:
    """Return the number of folds of n prompts. A single prompt cannot be left out."""
    return min(FOLDS, n) if n > 1 else 0


@dataclass(frozen=True, eq=False)
class SiteVectors:
    """The pooled vectors of N prompts (N, D), and those of their Q views (N, Q, D), if there are
    any.

    Fold k holds the prompts k, k + F, k + 2 F and so on, for F folds. `arrival` lists the prompts
    in the order in which they were read; None: as they stand. `shared` keeps what several metrics
    need (see `once`); an accelerator may fill it.
    """

    rows: Tensor
    views: Tensor | None = None
    arrival: Tensor | None = None
    shared: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, rows: Tensor, views: Tensor | None, keys: np.ndarray) -> Self:
        """Return vectors that were read in any order, sorted by their keys.

        >>> site = SiteVectors.of(torch.tensor([[2.0], [1.0]]), None, np.array([5, 3]))
        >>> site.rows.tolist()
        [[1.0], [2.0]]
        """
        if len(keys) != len(rows):
            raise ValueError(f"{len(keys)} keys for {len(rows)} prompts")
        order = torch.from_numpy(np.argsort(keys, kind="stable"))
        on_device = order.to(rows.device)
        return cls(
            rows[on_device],
            None if views is None else views[on_device],
            torch.argsort(order).to(rows.device),
        )

    def __post_init__(self) -> None:
        if self.rows.ndim != 2:
            raise ValueError(
                f"expected pooled vectors (prompts, width), got shape {tuple(self.rows.shape)}"
            )
        if self.views is not None and self.views.ndim != 3:
            raise ValueError(
                "expected vectors of views (prompts, views, width), "
                f"got shape {tuple(self.views.shape)}"
            )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def width(self) -> int:
        """D, the size of one vector."""
        return self.rows.shape[-1]

    def views_for(self, metric: str) -> Tensor:
        """Return the views; a ValueError unless there are two prompts and two views at least."""
        if self.views is None or len(self.views) < 2 or self.views.shape[1] < 2:
            shape = (len(self), 0) if self.views is None else tuple(self.views.shape[:2])
            raise ValueError(
                f"{metric} compares at least 2 prompts in at least 2 views; "
                f"prompts given: {shape[0]}, views: {shape[1]}"
            )
        return self.views

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return what `compute` gives, computed once for all metrics that ask for the key."""
        if key not in self.shared:
            self.shared[key] = compute()
        value: T = self.shared[key]
        return value

    def in_groups(self, rows: RowPreparation, group: int | None) -> tuple[Self, RowPreparation]:
        """Return the site and the preparation of its rows.

        With `group`, the rows are centered inside consecutive groups, in order of arrival, as the
        released code does, and nothing is left to prepare.
        """
        if group is None or not rows.startswith("centered"):
            return self, rows
        return self.once(("groups", rows, group), lambda: self._grouped(rows, group)), "raw"

    def _grouped(self, rows: RowPreparation, group: int) -> Self:
        arrival = torch.arange(len(self)) if self.arrival is None else self.arrival

        def prepare(vectors: Tensor) -> Tensor:
            arrived = vectors[arrival].double().movedim(0, -2)
            groups = [prepare_rows(block, rows) for block in arrived.split(group, dim=-2)]
            prepared = torch.empty_like(vectors, dtype=torch.float64)
            prepared[arrival] = torch.cat(groups, dim=-2).movedim(-2, 0)
            return prepared

        views = None if self.views is None else prepare(self.views)
        return replace(self, rows=prepare(self.rows), views=views, shared={})


def doubles(vectors: Tensor) -> Iterator[Tensor]:
    """Yield vectors as float64, a block at a time."""
    for block in vectors.split(BLOCK_ROWS):
        yield block.double()


def prepared_view(views: Tensor, index: int, rows: RowPreparation) -> Tensor:
    """Return the vectors of one view (N, D), prepared."""
    return prepare_rows(views[:, index].double(), rows)
