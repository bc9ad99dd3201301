"""Pairs that belong together or not: average precision of the cosines, as for pair classification. Nothing is trained."""

from __future__ import annotations

import numpy as np

from layerscope.core.statistics import average_precision
from layerscope.selection.labels.measures.base import Items, cosines
from layerscope.selection.labels.measures.folds import tested_in_rounds


class Pairs:
    """`sides` are the places of each pair's two texts among the texts; `targets` are 0 or 1."""

    name = "average_precision"

    def __init__(self, sides: tuple[np.ndarray, np.ndarray], targets: np.ndarray, repeats: int = 20, seed: int = 0) -> None:
        self.first, self.second = sides
        self.targets = targets.astype(np.float64)
        self.tested = tested_in_rounds(self.targets, repeats, seed)

    def items(self, vectors: np.ndarray) -> Items:
        """The cosine of every pair."""
        return Items(cosines(vectors[:, self.first], vectors[:, self.second]))

    def score(self, judged: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Average precision (layers, draws); equal cosines are taken together."""
        out = np.full((len(judged), len(weights)), np.nan)
        for layer, values in enumerate(judged):
            if np.isfinite(values).all():
                out[layer] = average_precision(values, self.targets, weights)
        return out

    def chance(self, weights: np.ndarray) -> np.ndarray:
        """The mean average precision of random orders, which for few pairs is above the share of those that belong together."""
        count, hits = weights.sum(1), (weights * self.targets).sum(1)
        out = np.empty(len(weights))
        for i, (n, p) in enumerate(zip(count, hits, strict=True)):
            rank = np.arange(1, int(n) + 1)
            out[i] = ((1 + (rank - 1) * (p - 1) / max(n - 1, 1)) / rank).mean()
        return out
