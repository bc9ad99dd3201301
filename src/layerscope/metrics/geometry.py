"""How pooled vectors lie: intrinsic dimension (TwoNN), and anisotropy in two senses, the mean
cosine between prompts and the share of the largest direction."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from layerscope.metrics.base import Estimate, Metric, MetricInfo
from layerscope.metrics.options import prepare_rows
from layerscope.metrics.samples import PooledRows


class Anisotropy(Metric[PooledRows]):
    """Mean cosine over all pairs of different prompts: (‖Σ u‖² − N) / (N (N − 1)), with u the unit
    vectors.

    >>> import torch
    >>> round(Anisotropy().update(torch.ones(3, 2)).compute().value, 6)  # all the same direction
    1.0
    """

    info = MetricInfo(
        name="anisotropy",
        title="Anisotropy",
        level="pooled",
        unit="cosine",
        higher_means="all prompts point in more similar directions",
        bounds=lambda n, d, o: (-1.0 / max(1, n - 1), 1.0),
        bounds_text="−1/(N − 1) to 1",
        citation="Ethayarajh 2019",
        main=False,
    )

    def estimate(self, data: PooledRows) -> Estimate:
        """The mean cosine; vectors of length zero have none and are left out."""
        total, n = torch.zeros(data.width, dtype=torch.float64, device=data.device), 0
        for z in data.blocks():
            unit = prepare_rows(z, "unit")
            total += unit.sum(0)
            n += int((unit != 0).any(-1).sum())
        undefined = len(data) - n
        if n < 2:
            return Estimate(math.nan, n, data.width, undefined=len(data))
        value = (float(total @ total) - n) / (n * (n - 1))
        with_others = torch.cat(
            [_cosines_with_others(prepare_rows(z, "unit"), total, n) for z in data.blocks()]
        )
        # each pair is shared by two prompts: a U-statistic of order two
        influence = 2 * (with_others.nan_to_num(value) - value) / n
        return Estimate(
            value, n, data.width, data.to_canonical(influence.cpu().numpy()), undefined=undefined
        )


def _cosines_with_others(unit: torch.Tensor, total: torch.Tensor, n: int) -> torch.Tensor:
    """Mean cosine of each vector with all the others; NaN for a vector of length zero."""
    squares = unit.square().sum(-1)
    return torch.where(squares > 0, (unit @ total - squares) / (n - 1), torch.nan)


_BLOCK = 1024


def neighbor_ratios(rows: Tensor) -> Tensor:
    """μ_i = r_2 / r_1 of each row (N, D); NaN where the nearest neighbor is at distance zero (a
    duplicate).

    Distances are taken directly, not through inner products: those lose half the digits for near
    neighbors.
    """
    n = len(rows)
    out = torch.full((n,), math.nan, dtype=torch.float64, device=rows.device)
    for start in range(0, n, _BLOCK):
        block = rows[start : start + _BLOCK]
        # inner products find candidates fast; the few nearest are then measured exactly
        squares = torch.cdist(block, rows)
        row = torch.arange(len(block), device=rows.device)
        squares[row, row + start] = math.inf
        near = squares.topk(min(4, n - 1), largest=False).indices
        exact = torch.linalg.vector_norm(block.unsqueeze(1) - rows[near], dim=-1).sort(-1).values
        out[start : start + len(block)] = torch.where(
            exact[:, 0] > 0, exact[:, 1] / exact[:, 0], math.nan
        )
    return out


class IntrinsicDimension(Metric[PooledRows]):
    """TwoNN on the pooled vectors: d = (n − 1) / Σ log μ, the unbiased maximum-likelihood form.

    >>> import torch
    >>> plane = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0)) @ torch.randn(2, 20)
    >>> 1.8 < IntrinsicDimension().update(plane).compute().value < 2.2
    True
    """

    info = MetricInfo(
        name="intrinsic_dimension",
        title="Intrinsic dimension",
        level="pooled",
        unit="dimensions",
        higher_means="prompts lie on a manifold of more dimensions",
        bounds=lambda n, d, o: (0.0, math.inf),
        bounds_text="above 0",
        citation="Facco et al. 2017 (TwoNN); Denti et al. 2022 (its estimator)",
        main=False,
    )

    def estimate(self, data: PooledRows) -> Estimate:
        """The dimension; duplicates have no ratio and are left out."""
        if len(data) < 3:
            return Estimate(math.nan, len(data), data.width, undefined=len(data))
        logs = neighbor_ratios(data.all()).log().cpu().numpy()
        defined = np.isfinite(logs)
        n, total = int(defined.sum()), float(logs[defined].sum())
        undefined = len(data) - n
        if n < 3 or total <= 0:
            return Estimate(math.nan, n, data.width, undefined=len(data))
        value = (n - 1) / total
        influence = -value * (logs[defined] - total / n) / total
        return Estimate(value, n, data.width, influence, undefined=undefined)
