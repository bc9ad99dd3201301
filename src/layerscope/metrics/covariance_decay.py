"""α-ReQ and NESum: two summaries of how fast the eigenvalues of the covariance fall."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from layerscope.metrics.base import MetricInfo
from layerscope.metrics.dataset_entropy import PooledSpectrumMetric

# Eigenvalues this much smaller than the largest are rounding of float32 states and would decide the slope.
_FLOOR = 1e-10


def power_law_exponent(eigenvalues: Tensor) -> Tensor:
    """Least-squares α of log λ_i = c − α log i over the nonzero eigenvalues (any order); NaN with fewer than two.

    >>> import torch
    >>> round(power_law_exponent(torch.arange(1, 50).double() ** -1.5).item(), 6)
    1.5
    """
    lam = eigenvalues.sort(dim=-1, descending=True).values
    used = lam > _FLOOR * lam[..., :1]
    count = used.sum(-1, keepdim=True)
    x = torch.arange(1, lam.shape[-1] + 1, dtype=lam.dtype, device=lam.device).log()
    x = torch.where(used, x - torch.where(used, x, 0.0).sum(-1, keepdim=True) / count, 0.0)
    slope = -(x * torch.where(used, lam, 1.0).log()).sum(-1) / x.square().sum(-1)
    return torch.where(count.squeeze(-1) < 2, math.nan, slope)


def nesum(eigenvalues: Tensor) -> Tensor:
    """Σ λ_i / λ_1."""
    return eigenvalues.sum(-1) / eigenvalues.amax(-1)


class AlphaReQ(PooledSpectrumMetric):
    """Exponent of the power law that the covariance's eigenvalues follow."""

    info = MetricInfo(
        name="alpha_req",
        title="α-ReQ",
        level="pooled",
        unit="exponent",
        higher_means="variance is concentrated in fewer directions",
        bounds=lambda n, d, o: (0.0, math.inf),
        bounds_text="at least 0",
        citation="Agrawal et al. 2022",
        main=False,
    )

    own_rows = "centered"  # so that the spectrum is that of the covariance
    function = staticmethod(power_law_exponent)


class NESum(PooledSpectrumMetric):
    """Sum of the covariance's eigenvalues over the largest."""

    info = MetricInfo(
        name="nesum",
        title="NESum",
        level="pooled",
        unit="dimensions",
        higher_means="variance is spread more evenly",
        bounds=lambda n, d, o: (1.0, float(max(1, min(n - 1, d)))),
        bounds_text="1 to min(N − 1, D)",
        citation="He & Ozay 2022",
        main=False,
    )

    own_rows = "centered"
    function = staticmethod(nesum)
