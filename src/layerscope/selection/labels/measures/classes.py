"""Texts with classes: how surely a text is told from those of other classes, by a cross-validated linear probe and by cosines.

Right or wrong is a coarse judgement: with 64 examples it has 64 steps. The score is finer, and tells candidates apart with fewer
labels: the share of examples of other classes that come after an example's own (areas under ROC curves, 0.5 is chance), half by a
probe that has not seen the example, half by the cosines alone. How often the probe is right is kept beside it.
"""

from __future__ import annotations

import numpy as np

from layerscope.selection.labels.measures.apart import Neighbours, told_apart
from layerscope.selection.labels.measures.base import Items, weighted_mean
from layerscope.selection.labels.measures.folds import stratified_folds, tested_in_rounds
from layerscope.selection.labels.measures.ridge import Probe, grams

_FITS = 512
"""About how many examples all repetitions together predict, so that many examples do not take many times longer."""


class Classes:
    """`rows` are the places of the examples' texts among the texts; `targets` are class numbers."""

    name = "auc"

    def __init__(self, rows: np.ndarray, targets: np.ndarray, folds: int = 5, seed: int = 0) -> None:
        self.rows, self.targets, self.folds, self.seed = rows, targets, folds, seed
        counts = np.bincount(targets)
        repeats = int(np.clip(_FITS // len(targets), 1, 4))
        self.splits = stratified_folds(targets, folds, repeats, seed)
        self.tested = tested_in_rounds(targets, repeats, seed)
        self.goal = np.eye(len(counts))[targets]
        # every class counts the same in the fit, as where a task trains on so many examples of each
        self.weights = (len(targets) / (counts > 0).sum()) / counts[targets]

    def items(self, vectors: np.ndarray) -> Items:
        """How surely each example is told from those of other classes, with all examples and in every round."""
        held = vectors[:, self.rows]
        known = np.isfinite(held).all((1, 2))
        judged = np.full((len(vectors), len(self.targets)), np.nan)
        right, rounds = judged.copy(), np.repeat(judged[None], len(self.tested), 0)
        if known.any():
            gram = grams(held[known])
            probe, near = Probe(gram, self.goal, self.weights), Neighbours(gram.numpy(), self.targets)
            predicted, every = probe.left_out(self.splits), np.ones(len(self.targets), dtype=bool)
            right[known] = (predicted.argmax(-1) == self.targets).mean(0)
            judged[known] = _both(told_apart(predicted, self.targets), near.told_apart(every, every))
            for i, test in enumerate(self.tested):
                splits = stratified_folds(self.targets[~test], self.folds, 1, self.seed + i)
                inner, outer = probe.without(test, splits)
                rounds[i][np.ix_(known, ~test)] = _both(told_apart(inner, self.targets[~test]), near.told_apart(~test, ~test))
                rounds[i][np.ix_(known, test)] = _both(told_apart(outer[None], self.targets[test]), near.told_apart(test, every))
        return Items(judged, rounds, right)

    def score(self, judged: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """The mean over the examples."""
        return weighted_mean(judged, weights)

    def chance(self, weights: np.ndarray) -> np.ndarray:
        """As often before as after."""
        return np.full(len(weights), 0.5)


def _both(by_probe: np.ndarray, by_cosine: np.ndarray) -> np.ndarray:
    """Their mean (layers, n). Deviations from the layer's mean are doubled: an example counts on both sides of its comparisons,
    which resampling must see."""
    share = (by_probe + by_cosine) / 2
    mean = share.mean(-1, keepdims=True)
    return mean + 2 * (share - mean)
