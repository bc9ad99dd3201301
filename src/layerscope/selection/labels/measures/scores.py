"""Pairs with a score: Spearman's ρ between cosine and score, as for STS tasks. Nothing is trained."""

from __future__ import annotations

import numpy as np

from layerscope.core.statistics import spearman
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
        return spearman(judged, self.targets, weights)

    def chance(self, weights: np.ndarray) -> np.ndarray:
        """No correlation."""
        return np.zeros(len(weights))
