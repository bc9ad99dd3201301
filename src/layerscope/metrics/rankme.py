"""RankMe: the effective rank of uncentred embeddings with a small ε."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from layerscope.metrics.base import MetricInfo
from layerscope.metrics.dataset_entropy import PooledSpectrumMetric, rank_bound
from layerscope.metrics.registry import register
from layerscope.metrics.rows import RowPreparation

EPSILON = 1e-7


def rankme(eigenvalues: Tensor, epsilon: float = EPSILON) -> Tensor:
    """exp(−Σ p log p) with p = σ / Σσ + ε."""
    sigma = torch.where(eigenvalues > 0, eigenvalues, 1.0).sqrt() * (eigenvalues > 0)
    p = sigma / sigma.sum() + epsilon
    return torch.special.entr(p).sum().exp()


@register
class RankMe(PooledSpectrumMetric):
    """RankMe of the pooled vectors as they are (no centring)."""

    info = MetricInfo(
        name="rankme",
        title="RankMe",
        level="pooled",
        unit="dimensions",
        higher_means="embeddings use more dimensions",
        bounds=rank_bound,
        bounds_text="1 to min(N, D)",
        citation="Garrido et al. 2023",
    )

    def rows(self) -> RowPreparation:
        """As they are."""
        return "raw"

    def function(self) -> Callable[[Tensor], Tensor]:
        """RankMe."""
        return rankme
