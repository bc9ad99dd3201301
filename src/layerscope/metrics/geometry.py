"""The geometry of pooled vectors: intrinsic dimension (TwoNN), and anisotropy, the mean cosine
between prompts."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from layerscope.metrics.base import Estimate, Metric, MetricInfo
from layerscope.metrics.options import Options, prepare_rows
from layerscope.metrics.vectors import SiteVectors, doubles


def estimate_anisotropy(site: SiteVectors, options: Options) -> Estimate:
    """Return the mean cosine over all pairs of different prompts: (‖Σ u‖² − N) / (N (N − 1)), with
    u the unit vectors. Vectors of length zero have no cosine and are left out.

    >>> round(estimate_anisotropy(SiteVectors(torch.ones(3, 2)), Options()).value, 6)
    1.0
    """
    total = torch.zeros(site.width, dtype=torch.float64, device=site.rows.device)
    n = 0
    for block in doubles(site.rows):
        unit = prepare_rows(block, "unit")
        total += unit.sum(0)
        n += int((unit != 0).any(-1).sum())
    if n < 2:
        return Estimate(math.nan, n, site.width, undefined=len(site))
    value = (float(total @ total) - n) / (n * (n - 1))
    cosines = torch.cat([_mean_cosines(block, total, n) for block in doubles(site.rows)])
    # each pair is shared by two prompts: a U-statistic of order two
    influence = 2 * (cosines.nan_to_num(value) - value) / n
    return Estimate(value, n, site.width, influence.cpu().numpy(), undefined=len(site) - n)


def _mean_cosines(block: Tensor, total: Tensor, n: int) -> Tensor:
    """Return the mean cosine of each vector with all the others; NaN for one of length zero."""
    unit = prepare_rows(block, "unit")
    squares = unit.square().sum(-1)
    return torch.where(squares > 0, (unit @ total - squares) / (n - 1), torch.nan)


ANISOTROPY = Metric(
    MetricInfo(
        name="anisotropy",
        title="Anisotropy",
        level="pooled",
        unit="cosine",
        higher_means="all prompts point in more similar directions",
        bounds=lambda n, d, o: (-1.0 / max(1, n - 1), 1.0),
        bounds_text="−1/(N − 1) to 1",
        citation="Ethayarajh 2019",
        main=False,
    ),
    estimate=estimate_anisotropy,
)

_BLOCK = 1024


def neighbor_ratios(rows: Tensor) -> Tensor:
    """Return μ_i = r_2 / r_1 of each row (N, D); NaN where the nearest neighbor is at distance zero
    (a duplicate).

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


def estimate_intrinsic_dimension(site: SiteVectors, options: Options) -> Estimate:
    """Return TwoNN's dimension, d = (n − 1) / Σ log μ, the unbiased maximum-likelihood form.
    Duplicates have no ratio and are left out.

    >>> plane = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0)) @ torch.randn(2, 20)
    >>> 1.8 < estimate_intrinsic_dimension(SiteVectors(plane), Options()).value < 2.2
    True
    """
    count = len(site)
    if count < 3:
        return Estimate(math.nan, count, site.width, undefined=count)
    logs = neighbor_ratios(site.rows.double()).log().cpu().numpy()
    defined = logs[np.isfinite(logs)]
    n = len(defined)
    total = float(defined.sum())
    if n < 3 or total <= 0:
        return Estimate(math.nan, n, site.width, undefined=count)
    value = (n - 1) / total
    influence = -value * (defined - total / n) / total
    return Estimate(value, n, site.width, influence, undefined=count - n)


INTRINSIC_DIMENSION = Metric(
    MetricInfo(
        name="intrinsic_dimension",
        title="Intrinsic dimension",
        level="pooled",
        unit="dimensions",
        higher_means="prompts lie on a manifold of more dimensions",
        bounds=lambda n, d, o: (0.0, math.inf),
        bounds_text="above 0",
        citation="Facco et al. 2017 (TwoNN); Denti et al. 2022 (its estimator)",
        main=False,
    ),
    estimate=estimate_intrinsic_dimension,
)
