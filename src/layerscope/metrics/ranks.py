"""Measures of how many directions a spectrum of pooled vectors holds, and of how fast it falls:
dataset entropy, effective rank, entropy rank, RankMe, α-ReQ, NESum.

Effective rank is of singular values, entropy rank exp(S_1) of their squares, which concentrates a
distribution: so 1 ≤ entropy rank ≤ effective rank ≤ rank. The paper's Theorem 1 has it reversed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from layerscope.metrics.base import Metric, MetricInfo
from layerscope.metrics.entropy import NORMALIZATIONS, rounding_floor, spectrum_entropy
from layerscope.metrics.spectral import (
    OfSpectrum,
    OfSums,
    effective_rank_of_sums,
    entropy_of_sums,
)
from layerscope.metrics.vectors import Options, RowPreparation

__all__ = ["effective_rank"]


def effective_rank(eigenvalues: Tensor) -> Tensor:
    """Return exp of the entropy of q ∝ σ = √λ (Roy & Vetterli 2007), from eigenvalues λ of the Gram
    matrix.

    >>> import torch
    >>> round(effective_rank(torch.tensor([4.0, 4.0, 0.0])).item(), 4)
    2.0
    """
    return spectrum_entropy(singular_values(eigenvalues), 1.0).exp()


def singular_values(eigenvalues: Tensor) -> Tensor:
    """Return σ = √λ, without rounding: the root would lift 1e-16 of the largest eigenvalue to 1e-8
    of the largest σ."""
    # the slope of √λ at 0 is infinite: eigenvalues that are zero must stay out of the graph
    present = eigenvalues > rounding_floor(eigenvalues)
    return torch.where(present, eigenvalues, 1.0).sqrt() * present


def entropy_rank(eigenvalues: Tensor) -> Tensor:
    """Return exp(S_1), from eigenvalues of the Gram matrix."""
    return spectrum_entropy(eigenvalues, 1.0).exp()


def entropy_rank_of_sums(sums: Tensor) -> Tensor:
    """Return exp(S_1) from the power sums of a spectrum."""
    return entropy_of_sums(sums).exp()


def _of_pooled(
    function: Callable[[Tensor], Tensor],
    of_sums: OfSums | None = None,
    rows: RowPreparation | None = None,
) -> OfSpectrum:
    return OfSpectrum(
        lambda eigenvalues, options: function(eigenvalues), lambda options: of_sums, rows
    )


def _entropy_of(eigenvalues: Tensor, options: Options) -> Tensor:
    return spectrum_entropy(eigenvalues, options.alpha)


def _entropy_sums(options: Options) -> OfSums | None:
    return entropy_of_sums if options.alpha == 1 else None


DATASET_ENTROPY = Metric(
    MetricInfo(
        name="dataset_entropy",
        title="Dataset entropy",
        level="pooled",
        unit="nats",
        higher_means="prompts spread over more directions",
        bounds="0 to log min(N, D)",
        citation="Skean et al. 2025, Eq. 1",
        normalizations=NORMALIZATIONS,
        core=True,
        heading="dataset\nentropy",
        order=30,
    ),
    estimate=OfSpectrum(_entropy_of, _entropy_sums),
)

EFFECTIVE_RANK = Metric(
    MetricInfo(
        name="effective_rank",
        title="Effective rank",
        level="pooled",
        unit="dimensions",
        higher_means="pooled vectors use more dimensions",
        bounds="1 to min(N, D); never below the entropy rank",
        citation="Roy & Vetterli 2007",
        core=True,
        heading="eff.\nrank",
        order=40,
    ),
    estimate=_of_pooled(effective_rank, effective_rank_of_sums),
)

ENTROPY_RANK = Metric(
    MetricInfo(
        name="entropy_rank",
        title="Entropy rank",
        level="pooled",
        unit="dimensions",
        higher_means="pooled vectors use more dimensions, weighting large ones more",
        bounds="1 to the effective rank",
        citation="Skean et al. 2025 (corrected Theorem 1)",
        main=False,
    ),
    estimate=_of_pooled(entropy_rank, entropy_rank_of_sums),
)

EPSILON = 1e-7


def rankme(eigenvalues: Tensor) -> Tensor:
    """Return exp(−Σ p log p) with p = σ / Σσ + ε."""
    sigma = singular_values(eigenvalues)
    p = sigma / sigma.sum(-1, keepdim=True) + EPSILON
    return torch.special.entr(p).sum(-1).exp()


RANKME = Metric(
    MetricInfo(
        name="rankme",
        title="RankMe",
        level="pooled",
        unit="dimensions",
        higher_means="embeddings use more dimensions",
        bounds="1 to min(N, D), up to ε",
        citation="Garrido et al. 2023",
        main=False,
    ),
    estimate=_of_pooled(rankme, rows="raw"),  # no centering
)

# Eigenvalues this much smaller than the largest are rounding of float32 states and would decide the
# slope.
_FLOOR = 1e-10


def power_law_exponent(eigenvalues: Tensor) -> Tensor:
    """Return the least-squares α of log λ_i = c − α log i over the nonzero eigenvalues (any order);
    NaN with fewer than two.

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
    """Return Σ λ_i / λ_1."""
    return eigenvalues.sum(-1) / eigenvalues.amax(-1)


ALPHA_REQ = Metric(
    MetricInfo(
        name="alpha_req",
        title="α-ReQ",
        level="pooled",
        unit="exponent",
        higher_means="variance is concentrated in fewer directions",
        bounds="at least 0",
        citation="Agrawal et al. 2022",
        main=False,
    ),
    # centered, so that the spectrum is that of the covariance
    estimate=_of_pooled(power_law_exponent, rows="centered"),
)

NESUM = Metric(
    MetricInfo(
        name="nesum",
        title="NESum",
        level="pooled",
        unit="dimensions",
        higher_means="variance is spread more evenly",
        bounds="1 to min(N − 1, D)",
        citation="He & Ozay 2022",
        main=False,
    ),
    estimate=_of_pooled(nesum, rows="centered"),
)
