"""Effective rank (from singular values) and entropy rank exp(S_1) (from their squares): two different numbers.

Squaring concentrates a distribution, so 1 ≤ entropy rank ≤ effective rank ≤ rank: the paper's Theorem 1 has it reversed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from layerscope.metrics.base import MetricInfo
from layerscope.metrics.dataset_entropy import PooledSpectrumMetric, rank_bound
from layerscope.metrics.entropy import rounding_floor, spectrum_entropy
from layerscope.metrics.folds import effective_rank_of_sums, entropy_rank_of_sums


def effective_rank(eigenvalues: Tensor) -> Tensor:
    """exp of the entropy of q ∝ σ = √λ (Roy & Vetterli 2007), from eigenvalues λ of the Gram matrix.

    >>> import torch
    >>> round(effective_rank(torch.tensor([4.0, 4.0, 0.0])).item(), 4)
    2.0
    """
    return spectrum_entropy(singular_values(eigenvalues), 1.0).exp()


def singular_values(eigenvalues: Tensor) -> Tensor:
    """σ = √λ, without rounding: the root would lift 1e-16 of the largest eigenvalue to 1e-8 of the largest σ."""
    # the slope of √λ at 0 is infinite: eigenvalues that are zero must stay out of the graph
    present = eigenvalues > rounding_floor(eigenvalues)
    return torch.where(present, eigenvalues, 1.0).sqrt() * present


def entropy_rank(eigenvalues: Tensor) -> Tensor:
    """exp(S_1), from eigenvalues of the Gram matrix."""
    return spectrum_entropy(eigenvalues, 1.0).exp()


class EffectiveRank(PooledSpectrumMetric):
    """exp(−Σ q log q), q = σ / Σσ, with σ the singular values of the pooled vectors."""

    info = MetricInfo(
        name="effective_rank",
        title="Effective rank",
        level="pooled",
        unit="dimensions",
        higher_means="pooled vectors use more dimensions",
        bounds=rank_bound,
        bounds_text="1 to min(N, D); never below the entropy rank",
        citation="Roy & Vetterli 2007",
        core=True,
        heading="eff.\nrank",
        order=40,
    )

    function = staticmethod(effective_rank)
    of_sums = staticmethod(effective_rank_of_sums)


class EntropyRank(PooledSpectrumMetric):
    """exp(S_1) of the pooled vectors."""

    info = MetricInfo(
        name="entropy_rank",
        title="Entropy rank",
        level="pooled",
        unit="dimensions",
        higher_means="pooled vectors use more dimensions, weighting large ones more",
        bounds=rank_bound,
        bounds_text="1 to the effective rank",
        citation="Skean et al. 2025 (corrected Theorem 1)",
        main=False,
    )

    function = staticmethod(entropy_rank)
    of_sums = staticmethod(entropy_rank_of_sums)
