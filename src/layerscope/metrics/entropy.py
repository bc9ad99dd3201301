"""Matrix-based entropy S_α and its normalizations.

Z is N×D, K = Z Zᵀ, p_i = λ_i(K) / tr K, and S_α = log(Σ p_i^α) / (1 − α), with its limits at α = 1
and ∞. K and ZᵀZ share their nonzero spectrum, so the smaller one is used. Source: Giraldo, Rao &
Príncipe 2014; Skean et al. 2025, Eq. 1.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from layerscope.metrics.vectors import RowPreparation, prepare_rows
from layerscope.spectra import eigvalsh

__all__ = ["gram_entropy", "rounding_floor", "smaller_gram"]

Normalization = Literal["raw", "maxEntropy", "logN", "logD", "logNlogD"]
NORMALIZATIONS: tuple[Normalization, ...] = get_args(Normalization)


def check_alpha(alpha: float) -> float:
    """Return α as a float; raise a ValueError if it is negative or not a number."""
    alpha = float(alpha)
    if math.isnan(alpha) or alpha < 0:
        raise ValueError(f"alpha must be a number >= 0 (or inf), not {alpha}")
    return alpha


def spectrum_entropy(eigenvalues: Tensor, alpha: float = 1.0) -> Tensor:
    """Return S_α of spectra along the last dimension, in nats; they need not sum to one.

    Negative eigenvalues (rounding) are clamped to zero. A spectrum that is all zero has no entropy:
    its value is NaN, for the caller to count. For α < 1, where p^α lifts rounding up, an eigenvalue
    counts if it exceeds n·eps of the largest.

    >>> import torch
    >>> round(spectrum_entropy(torch.tensor([1.0, 1.0, 0.0])).item(), 6)  # log 2
    0.693147
    """
    alpha = check_alpha(alpha)
    lam = eigenvalues.clamp(min=0)
    if alpha < 1:
        lam = torch.where(lam > rounding_floor(lam), lam, 0.0)
    total = lam.sum(-1, keepdim=True)
    p = lam / total  # 0 / 0 = NaN where the spectrum vanishes
    if alpha == math.inf:
        return -p.amax(-1).log()
    # zeros stay out of the graph: log 0 would make the slope at every other eigenvalue NaN too
    present = p > 0
    logs = torch.where(present, p, 1.0).log()
    if alpha == 1:
        value = -(p * logs).sum(-1)
    elif alpha == 0:
        value = present.sum(-1).to(p.dtype).log()
    elif (
        abs(alpha - 1) < 1e-4
    ):  # Σ p^α = 1 + Σ p (p^(α − 1) − 1), whose second part is small: no digits lost
        value = torch.log1p((p * torch.expm1((alpha - 1) * logs)).sum(-1)) / (1 - alpha)
    else:  # log-sum-exp of α log p: p^α underflows for large α
        value = torch.logsumexp(torch.where(present, alpha * logs, -math.inf), -1) / (1 - alpha)
    return torch.where(total[..., 0] > 0, value, torch.nan)


def rounding_floor(eigenvalues: Tensor) -> Tensor:
    """Return n·eps of the largest eigenvalue (..., 1): what is below comes from rounding."""
    return (
        eigenvalues.shape[-1]
        * torch.finfo(eigenvalues.dtype).eps
        * eigenvalues.amax(-1, keepdim=True)
    )


def gram_entropy(gram: Tensor, alpha: float = 1.0, overwrite: bool = False) -> Tensor:
    """Return S_α, in float64, of positive semidefinite matrices (..., n, n).

    α = 2 needs no eigenvalues. `overwrite` allows the matrices to be destroyed, which saves a
    solver its copy.
    """
    if check_alpha(alpha) == 2:
        trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1, dtype=torch.float64)
        return -torch.log(gram.square().sum((-2, -1), dtype=torch.float64) / trace.square())
    lam = eigvalsh(gram, overwrite=overwrite)
    if (
        alpha < 1
    ):  # before the change of type: what counts as rounding is a matter of the matrices' own
        lam = torch.where(lam > rounding_floor(lam), lam, 0.0)
    return spectrum_entropy(lam.double(), alpha)


def smaller_gram(z: Tensor) -> Tensor:
    """Return Z Zᵀ or Zᵀ Z, whichever is smaller: they share their nonzero eigenvalues."""
    return z @ z.mT if z.shape[-2] <= z.shape[-1] else z.mT @ z


def matrix_entropy(z: Tensor, alpha: float = 1.0, rows: RowPreparation = "raw") -> Tensor:
    """Return S_α of matrices (..., N, D), in nats, computed in float64.

    >>> import torch
    >>> round(matrix_entropy(torch.eye(4)).item(), 6)  # orthonormal rows: log 4
    1.386294
    """
    return gram_entropy(smaller_gram(prepare_rows(z.double(), rows)), alpha)


def normalizer(normalization: Normalization, n: float, d: float) -> float:
    """Return what an entropy of N rows in D dimensions is divided by; NaN where that is log 1 = 0
    (not defined).

    >>> normalizer("raw", 10, 5)
    1.0
    """
    return float(normalizers(normalization, np.array(n), d))


def normalizers(normalization: Normalization, counts: np.ndarray, d: float) -> np.ndarray:
    """Return the normalizer of each number of rows."""
    if normalization == "raw":
        return np.ones(counts.shape)
    if normalization not in NORMALIZATIONS:
        raise ValueError(
            f"normalization must be one of {', '.join(NORMALIZATIONS)}, not {normalization!r}"
        )
    log_n = np.log(np.maximum(counts, 1))
    log_d = np.full(counts.shape, math.log(max(d, 1)))
    by = {
        "maxEntropy": np.minimum(log_n, log_d),
        "logN": log_n,
        "logD": log_d,
        "logNlogD": log_n * log_d,
    }[normalization]
    return np.where(by > 0, by, np.nan)
