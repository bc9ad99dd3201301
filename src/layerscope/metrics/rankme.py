"""RankMe: the effective rank of uncentered embeddings with a small ε."""

from __future__ import annotations

import torch
from torch import Tensor

from layerscope.metrics.base import MetricInfo
from layerscope.metrics.dataset_entropy import PooledSpectrumMetric
from layerscope.metrics.effective_rank import singular_values
from layerscope.metrics.options import Options

EPSILON = 1e-7


def rankme(eigenvalues: Tensor) -> Tensor:
    """exp(−Σ p log p) with p = σ / Σσ + ε."""
    sigma = singular_values(eigenvalues)
    p = sigma / sigma.sum(-1, keepdim=True) + EPSILON
    return torch.special.entr(p).sum(-1).exp()


def _bound(n: int, d: int, options: Options) -> tuple[float, float]:
    """ε moves both ends a little: p = (1, 0, …) and p = 1/k, each plus ε."""
    k = max(1, min(n, d))
    ends = torch.tensor([1.0] + [0.0] * (k - 1), dtype=torch.float64), torch.full((k,), 1 / k, dtype=torch.float64)
    low, high = (float(torch.special.entr(p + EPSILON).sum().exp()) for p in ends)
    return low, high


class RankMe(PooledSpectrumMetric):
    """RankMe of the pooled vectors as they are (no centering)."""

    info = MetricInfo(
        name="rankme",
        title="RankMe",
        level="pooled",
        unit="dimensions",
        higher_means="embeddings use more dimensions",
        bounds=_bound,
        bounds_text="1 to min(N, D), up to ε",
        citation="Garrido et al. 2023",
        main=False,
    )

    own_rows = "raw"
    function = staticmethod(rankme)
