"""Neighbouring layers under one readout are alike: a layer's score is read together with its neighbours'."""

from __future__ import annotations

import numpy as np

WIDTH = 0.5
"""Standard deviation of the average over layers, in layers of a 30-block model; less for shallower ones."""


def smooth_layers(scores: np.ndarray, width: float) -> np.ndarray:
    """A Gaussian average over the layer axis of scores (readouts, layers, draws). What is undefined stays so."""
    if width <= 0:
        return scores
    at = np.arange(scores.shape[1])
    kernel = np.exp(-0.5 * ((at[:, None] - at[None, :]) / width) ** 2)
    known = np.isfinite(scores)
    total = np.einsum("kl,rlb->rkb", kernel, np.where(known, scores, 0.0))
    weight = np.einsum("kl,rlb->rkb", kernel, known.astype(np.float64))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(known, total / weight, np.nan)
