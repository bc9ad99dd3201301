"""Pairs with a score: Spearman's ρ between cosine and score, as for STS tasks. Nothing is trained."""

from __future__ import annotations

import numpy as np

from layerscope.selection.labels.measures.base import Items, cosines
from layerscope.selection.labels.measures.folds import tested_in_rounds


class Scores:
    """`sides` are the places of each pair's two texts among the texts."""

    name = "spearman"

    def __init__(self, sides: tuple[np.ndarray, np.ndarray], targets: np.ndarray, repeats: int = 20, seed: int = 0) -> None:
        self.first, self.second = sides
        self.targets = targets
        self.tested = tested_in_rounds(np.zeros(len(targets)), repeats, seed)

    def items(self, vectors: np.ndarray) -> Items:
        """The cosine of every pair."""
        return Items(cosines(vectors[:, self.first], vectors[:, self.second]))

    def score(self, judged: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Spearman's ρ (layers, draws); an example that counts twice is two equal examples."""
        gold, spread = _standard(weighted_ranks(self.targets, weights), weights)
        out = np.full((len(judged), len(weights)), np.nan)
        for layer, values in enumerate(judged):
            if np.isfinite(values).all():
                ranks, size = _standard(weighted_ranks(values, weights), weights)
                with np.errstate(invalid="ignore", divide="ignore"):
                    out[layer] = np.einsum("bn,bn,bn->b", ranks, gold, weights) / np.sqrt(size * spread)
        return out

    def chance(self, weights: np.ndarray) -> np.ndarray:
        """No correlation."""
        return np.zeros(len(weights))


def weighted_ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Mean ranks (draws, n) of values (n,) where each counts `weights` (draws, n) times; ties at their mean."""
    distinct, group = np.unique(values, return_inverse=True)
    if len(distinct) == len(values):  # almost always, for cosines
        order = np.argsort(values)
        sorted_weights = weights[:, order]
        below = np.cumsum(sorted_weights, axis=1) - (sorted_weights - 1) / 2
        out = np.empty_like(below)
        out[:, order] = below
        return out
    member = np.zeros((len(values), len(distinct)))
    member[np.arange(len(values)), group] = 1
    counts = weights @ member
    return (np.cumsum(counts, axis=1) - (counts - 1) / 2)[:, group]


def _standard(ranks: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ranks minus their mean, and the sum of their squares, both weighted."""
    mean = (ranks * weights).sum(1, keepdims=True) / weights.sum(1, keepdims=True)
    centred = ranks - mean
    return centred, (centred**2 * weights).sum(1)
