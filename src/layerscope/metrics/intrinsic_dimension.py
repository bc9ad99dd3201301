"""Intrinsic dimension by TwoNN: from the ratio of the distances to the two nearest neighbors."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from layerscope.metrics.base import Estimate, Metric, MetricInfo
from layerscope.metrics.samples import PooledRows

_BLOCK = 1024


def neighbor_ratios(rows: Tensor) -> Tensor:
    """μ_i = r_2 / r_1 of each row (N, D); NaN where the nearest neighbor is at distance zero (a duplicate).

    Distances are taken directly, not through inner products: those lose half the digits for near neighbors.
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
        out[start : start + len(block)] = torch.where(exact[:, 0] > 0, exact[:, 1] / exact[:, 0], math.nan)
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
