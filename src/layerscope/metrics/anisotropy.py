"""Anisotropy, in two senses: the mean cosine between different prompts, and the share of the largest direction."""

from __future__ import annotations

import math

import torch

from layerscope.metrics.base import Estimate, Metric, MetricInfo
from layerscope.metrics.dataset_entropy import PooledSpectrumMetric
from layerscope.metrics.options import prepare_rows
from layerscope.metrics.samples import PooledRows


class Anisotropy(Metric[PooledRows]):
    """Mean cosine over all pairs of different prompts: (‖Σ u‖² − N) / (N (N − 1)), with u the unit vectors.

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
        with_others = torch.cat([_cosines_with_others(prepare_rows(z, "unit"), total, n) for z in data.blocks()])
        # each pair is shared by two prompts: a U-statistic of order two
        influence = 2 * (with_others.nan_to_num(value) - value) / n
        return Estimate(value, n, data.width, data.to_canonical(influence.cpu().numpy()), undefined=undefined)


def _cosines_with_others(unit: torch.Tensor, total: torch.Tensor, n: int) -> torch.Tensor:
    """Mean cosine of each vector with all the others; NaN for a vector of length zero."""
    squares = unit.square().sum(-1)
    return torch.where(squares > 0, (unit @ total - squares) / (n - 1), torch.nan)


class SpectralAnisotropy(PooledSpectrumMetric):
    """σ₁² / Σ σ² of the centered pooled vectors: the share of their variance along one direction.

    Its logarithm is −S_∞ of the centered rows: anisotropy = exp(−S_∞). Every S_α is between S_∞ and α / (α − 1) · S_∞ for α > 1,
    so that a high anisotropy and a low entropy are the same finding.

    >>> import torch
    >>> rows = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> round(SpectralAnisotropy().update(rows).compute().value, 6)  # 8 of 8 + 2
    0.8
    """

    info = MetricInfo(
        name="spectral_anisotropy",
        title="Spectral anisotropy",
        level="pooled",
        unit="share",
        higher_means="one direction holds more of the variance of all prompts",
        bounds=lambda n, d, o: (1.0 / max(1, min(n, d)), 1.0),
        bounds_text="1/min(N, D) to 1",
        citation="Razzhigaev et al. 2024",
        main=False,
        by_default=False,
    )

    own_rows = "centered"  # lengths kept: a covariance
    function = staticmethod(lambda eigenvalues: eigenvalues.amax(-1) / eigenvalues.sum(-1))
