"""The settings that change a metric's value. Every one of them is stored with every result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from layerscope.metrics.rows import RowPreparation

ENTROPIES = ("exact", "approximate")


@dataclass(frozen=True)
class Options:
    """Settings of the metrics; the defaults are layerscope's.

    The last five reproduce habits of the paper's released code (preset `released`); see docs/conventions.md.
    """

    alpha: float = 1.0
    entropy: Literal["exact", "approximate"] = "exact"  # of prompts of 256 tokens and more, at α = 1 (spectra/chebyshev/)
    rows: RowPreparation = "centered-unit"  # token states, for prompt entropy
    pooled_rows: RowPreparation = "centered-unit"  # pooled vectors, for dataset entropy and the ranks
    view_rows: RowPreparation = "unit"  # pooled vectors of the views, for InfoNCE and DiME
    lidar_rows: RowPreparation = "raw"
    temperature: float = 0.1  # InfoNCE
    delta: float = 1e-4  # added to the diagonal of LiDAR's within-prompt scatter
    permutations: int = 10  # DiME
    dime_samples: int = 1000  # DiME's cost grows with the cube of this
    seed: int = 0
    clamp_gram: bool = False  # negative Gram entries set to zero before the entropy
    curvature_absolute: bool = False  # |cos| instead of cos between successive differences
    infonce_one_way: bool = False  # N x N logits from view 1 to view 2, instead of NT-Xent over both
    dime_feature_side: bool = False  # D x D covariances when N > D
    group: int | None = None  # centre pooled vectors inside groups of this many prompts
