"""Entropies and weights of spectra at many orders; power laws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from layerscope.metrics.entropy import rounding_floor, spectrum_entropy

COLUMNS = ["model", "spectrum", "layer", "alpha", "metric", "sink", "value", "ci_low", "ci_high", "n"]


def top_weight(eigenvalues: Tensor, alpha: float, share: float) -> Tensor:
    """The weight p^α / Σ p^α of the largest `share` of the nonzero eigenvalues (at least one), along the last dimension.

    >>> round(float(top_weight(torch.tensor([3.0, 1.0]), 1.0, 0.5)), 6)
    0.75
    """
    lam = eigenvalues.clamp(min=0).sort(dim=-1, descending=True).values
    present = lam > rounding_floor(lam)
    logs = torch.where(present, lam, 1.0).log()
    powers = torch.where(present, torch.exp(alpha * (logs - logs.amax(-1, keepdim=True))), 0.0)
    count = (share * present.sum(-1, keepdim=True)).round().clamp(min=1)
    rank = torch.arange(1, lam.shape[-1] + 1)
    return torch.where(rank <= count, powers, 0.0).sum(-1) / powers.sum(-1)


def power_laws(exponents: Sequence[float], size: int, alphas: Sequence[float], top: float) -> pd.DataFrame:
    """Both quantities of λ_i = i^(−β), by β and α."""
    rows: list[list[Any]] = []
    for beta in exponents:
        spectrum = torch.arange(1, size + 1, dtype=torch.float64) ** -beta
        for alpha in alphas:
            place = ["power law", f"β = {beta:g}", None, alpha]
            nothing = [math.nan, math.nan, 1]
            rows.append([*place, "entropy", "keep", float(spectrum_entropy(spectrum, alpha)), *nothing])
            rows.append([*place, "top_weight", "keep", float(top_weight(spectrum, alpha, top)), *nothing])
    return pd.DataFrame(rows, columns=COLUMNS)
