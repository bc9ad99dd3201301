"""How many directions a spectrum holds, and how fast it falls: effective rank, entropy rank,
RankMe, α-ReQ, NESum.

Effective rank is of singular values, entropy rank exp(S_1) of their squares, which concentrates a
distribution: so 1 ≤ entropy rank ≤ effective rank ≤ rank. The paper's Theorem 1 has it reversed."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from layerscope.metrics.base import MetricInfo
from layerscope.metrics.dataset_entropy import PooledSpectrumMetric, rank_bound
from layerscope.metrics.entropy import rounding_floor, spectrum_entropy
from layerscope.metrics.folds import effective_rank_of_sums, entropy_rank_of_sums
from layerscope.metrics.options import Options

__all__ = ["effective_rank"]


def effective_rank(eigenvalues: Tensor) -> Tensor:
    """exp of the entropy of q ∝ σ = √λ (Roy & Vetterli 2007), from eigenvalues λ of the Gram
    matrix.

    >>> import torch
    >>> round(effective_rank(torch.tensor([4.0, 4.0, 0.0])).item(), 4)
    2.0
    """
    return spectrum_entropy(singular_values(eigenvalues), 1.0).exp()


def singular_values(eigenvalues: Tensor) -> Tensor:
    """σ = √λ, without rounding: the root would lift 1e-16 of the largest eigenvalue to 1e-8 of the
    largest σ."""
    # the slope of √λ at 0 is infinite: eigenvalues that are zero must stay out of the graph
    present = eigenvalues > rounding_floor(eigenvalues)
    return torch.where(present, eigenvalues, 1.0).sqrt() * present


def entropy_rank(eigenvalues: Tensor) -> Tensor:
    """exp(S_1), from eigenvalues of the Gram matrix."""
    return spectrum_entropy(eigenvalues, 1.0).exp()


def _facts(name: str, title: str, higher_means: str, citation: str, **more: Any) -> MetricInfo:
    """A metric of the pooled vectors' spectrum; by default a rank, and not among the main ones."""
    usual: dict[str, Any] = {
        "level": "pooled",
        "unit": "dimensions",
        "bounds": rank_bound,
        "bounds_text": "1 to min(N, D)",
        "main": False,
    }
    names = {"name": name, "title": title, "higher_means": higher_means, "citation": citation}
    return MetricInfo(**{**usual, **names, **more})


class EffectiveRank(PooledSpectrumMetric):
    """exp(−Σ q log q), q = σ / Σσ, with σ the singular values of the pooled vectors."""

    info = _facts(
        "effective_rank",
        "Effective rank",
        "pooled vectors use more dimensions",
        "Roy & Vetterli 2007",
        bounds_text="1 to min(N, D); never below the entropy rank",
        core=True,
        heading="eff.\nrank",
        order=40,
        main=True,
    )

    function = staticmethod(effective_rank)
    of_sums = staticmethod(effective_rank_of_sums)


class EntropyRank(PooledSpectrumMetric):
    """exp(S_1) of the pooled vectors."""

    info = _facts(
        "entropy_rank",
        "Entropy rank",
        "pooled vectors use more dimensions, weighting large ones more",
        "Skean et al. 2025 (corrected Theorem 1)",
        bounds_text="1 to the effective rank",
    )

    function = staticmethod(entropy_rank)
    of_sums = staticmethod(entropy_rank_of_sums)


EPSILON = 1e-7


def rankme(eigenvalues: Tensor) -> Tensor:
    """exp(−Σ p log p) with p = σ / Σσ + ε."""
    sigma = singular_values(eigenvalues)
    p = sigma / sigma.sum(-1, keepdim=True) + EPSILON
    return torch.special.entr(p).sum(-1).exp()


def _bound(n: int, d: int, options: Options) -> tuple[float, float]:
    """ε moves both ends a little: p = (1, 0, …) and p = 1/k, each plus ε."""
    k = max(1, min(n, d))
    ends = (
        torch.tensor([1.0] + [0.0] * (k - 1), dtype=torch.float64),
        torch.full((k,), 1 / k, dtype=torch.float64),
    )
    low, high = (float(torch.special.entr(p + EPSILON).sum().exp()) for p in ends)
    return low, high


class RankMe(PooledSpectrumMetric):
    """RankMe of the pooled vectors as they are (no centering)."""

    info = _facts(
        "rankme",
        "RankMe",
        "embeddings use more dimensions",
        "Garrido et al. 2023",
        bounds=_bound,
        bounds_text="1 to min(N, D), up to ε",
    )

    own_rows = "raw"
    function = staticmethod(rankme)


# Eigenvalues this much smaller than the largest are rounding of float32 states and would decide the
# slope.
_FLOOR = 1e-10


def power_law_exponent(eigenvalues: Tensor) -> Tensor:
    """Least-squares α of log λ_i = c − α log i over the nonzero eigenvalues (any order); NaN with
    fewer than two.

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

    info = _facts(
        "alpha_req",
        "α-ReQ",
        "variance is concentrated in fewer directions",
        "Agrawal et al. 2022",
        unit="exponent",
        bounds=lambda n, d, o: (0.0, math.inf),
        bounds_text="at least 0",
    )

    own_rows = "centered"  # so that the spectrum is that of the covariance
    function = staticmethod(power_law_exponent)


class NESum(PooledSpectrumMetric):
    """Sum of the covariance's eigenvalues over the largest."""

    info = _facts(
        "nesum",
        "NESum",
        "variance is spread more evenly",
        "He & Ozay 2022",
        bounds=lambda n, d, o: (1.0, float(max(1, min(n - 1, d)))),
        bounds_text="1 to min(N − 1, D)",
    )

    own_rows = "centered"
    function = staticmethod(nesum)
