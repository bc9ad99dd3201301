"""Measures of vectors by labels: the contribution of each example, and the score of a weighting.

Three kinds of labels: texts with classes, pairs that belong together or not, and pairs with a
score.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from layerscope.choose.labels.probes import (
    Neighbors,
    Probe,
    grams,
    separation,
    stratified_folds,
    tested_in_rounds,
)
from layerscope.choose.labels.read import Labeled
from layerscope.core.statistics import average_precision, spearman

__all__ = ["Contributions", "LabelMeasure", "make_measure"]

FOLDS = 5
_PAIR_ROUNDS = 20  # repetitions of the rounds: pairs train nothing
_FITS = 512
"""About how many examples all repetitions together predict, so that many examples do not take many
times longer."""


@dataclass(frozen=True)
class Contributions:
    """The contribution of each example to the score (layers, n).

    `rounds` (rounds, layers, n) is there where something is trained: the same without the examples
    that a round tests, and, for those, how they are then judged. `accuracy` (layers, n) is there
    for classes: how often each example was put right.
    """

    judged: np.ndarray
    rounds: np.ndarray | None = None
    accuracy: np.ndarray | None = None


class LabelMeasure(ABC):
    """One way of judging vectors by labels.

    `tested` (rounds, n) says which examples a round leaves out of the choice. Vectors are in the
    order of `Labeled.texts`.
    """

    name: ClassVar[str]
    tested: np.ndarray

    @abstractmethod
    def items(self, vectors: np.ndarray) -> Contributions:
        """Return the contributions, from vectors (layers, texts, D).

        They are NaN throughout where a layer is undefined.
        """

    @abstractmethod
    def score(self, judged: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return scores (layers, draws) of contributions (layers, n) under weights (draws, n)."""

    @abstractmethod
    def chance(self, weights: np.ndarray) -> np.ndarray:
        """Return the score (draws,) to expect of vectors that know nothing of the labels."""


class Classes(LabelMeasure):
    """Texts with classes: a cross-validated probe, and cosines."""

    name = "auc"

    def __init__(self, labeled: Labeled, seed: int = 0) -> None:
        self.rows = _places(labeled)[0]
        self.targets = targets = labeled.targets
        self.seed = seed
        counts = np.bincount(targets)
        repeats = int(np.clip(_FITS // len(targets), 1, 4))
        self.splits = stratified_folds(targets, FOLDS, repeats, seed)
        self.tested = tested_in_rounds(targets, repeats, seed)
        self.goal = np.eye(len(counts))[targets]
        # every class counts the same in the fit, as where a task trains on so many examples of each
        self.weights = (len(targets) / (counts > 0).sum()) / counts[targets]

    def items(self, vectors: np.ndarray) -> Contributions:
        """Return how well each example is separated from those of other classes.

        That is with all examples, and in every round.
        """
        rows = vectors[:, self.rows]
        targets = self.targets
        is_defined = np.isfinite(rows).all((1, 2))
        judged = np.full((len(vectors), len(targets)), np.nan)
        accuracy = judged.copy()
        rounds = np.repeat(judged[None], len(self.tested), 0)
        if not is_defined.any():
            return Contributions(judged, rounds, accuracy)
        gram = grams(rows[is_defined])
        probe = Probe(gram, self.goal, self.weights)
        neighbors = Neighbors(gram.numpy(), targets)
        predicted = probe.left_out(self.splits)
        everything = np.ones(len(targets), dtype=bool)
        accuracy[is_defined] = (predicted.argmax(-1) == targets).mean(0)
        judged[is_defined] = _combine(
            separation(predicted, targets), neighbors.separation(everything, everything)
        )
        for i, test in enumerate(self.tested):
            splits = stratified_folds(targets[~test], FOLDS, 1, self.seed + i)
            inner, outer = probe.without(test, splits)
            rounds[i][np.ix_(is_defined, ~test)] = _combine(
                separation(inner, targets[~test]), neighbors.separation(~test, ~test)
            )
            rounds[i][np.ix_(is_defined, test)] = _combine(
                separation(outer[None], targets[test]), neighbors.separation(test, everything)
            )
        return Contributions(judged, rounds, accuracy)

    def score(self, judged: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the mean over the examples."""
        return judged.astype(np.float64) @ (weights / weights.sum(1, keepdims=True)).T

    def chance(self, weights: np.ndarray) -> np.ndarray:
        """Return one half: without knowledge an example ranks above another class half of the time."""
        return np.full(len(weights), 0.5)


def _combine(by_probe: np.ndarray, by_cosine: np.ndarray) -> np.ndarray:
    """Return the mean (layers, n) of both, with deviations from the layer's mean doubled.

    An example counts on both sides of its comparisons, which resampling must see.
    """
    share = (by_probe + by_cosine) / 2
    mean = share.mean(-1, keepdims=True)
    return mean + 2 * (share - mean)


class Pairs(LabelMeasure):
    """Pairs that belong together (target 1) or not (0), by their cosine."""

    name = "average_precision"

    def __init__(self, labeled: Labeled, seed: int = 0) -> None:
        self.first, self.second = _places(labeled)
        self.targets = labeled.targets.astype(np.float64)
        strata = self.targets if labeled.groups is not None else np.zeros(len(labeled))
        self.tested = tested_in_rounds(strata, _PAIR_ROUNDS, seed)

    def items(self, vectors: np.ndarray) -> Contributions:
        """Return the cosine of every pair."""
        first_side = vectors[:, self.first]
        second_side = vectors[:, self.second]
        product = np.einsum("lnd,lnd->ln", first_side, second_side, dtype=np.float64)
        sizes = [
            np.linalg.norm(side.astype(np.float64), axis=-1) for side in (first_side, second_side)
        ]
        return Contributions(product / np.maximum(sizes[0] * sizes[1], 1e-30))

    def score(self, judged: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return average precisions (layers, draws); equal cosines are taken together."""
        return average_precision(judged, self.targets, weights)

    def chance(self, weights: np.ndarray) -> np.ndarray:
        """Return the mean average precision of random orders.

        For few pairs it is above the share of those that belong together.
        """
        expected = []
        for count, hits in zip(weights.sum(1), (weights * self.targets).sum(1), strict=True):
            rank = np.arange(1, int(count) + 1)
            precision = (1 + (rank - 1) * (hits - 1) / max(count - 1, 1)) / rank
            expected.append(precision.mean())
        return np.array(expected)


class ScoredPairs(Pairs):
    """Pairs with a score, by the rank correlation of cosines and scores."""

    name = "spearman"

    def score(self, judged: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return Spearman's ρ (layers, draws); an example that counts twice is two equal ones."""
        return spearman(judged, self.targets, weights)

    def chance(self, weights: np.ndarray) -> np.ndarray:
        """Return no correlation."""
        return np.zeros(len(weights))


def _places(labeled: Labeled) -> list[np.ndarray]:
    """Return the places of each side's texts among all distinct texts."""
    place = {text: i for i, text in enumerate(labeled.texts)}
    return [np.array([place[text] for text in side]) for side in labeled.sides]


def make_measure(labeled: Labeled, seed: int = 0) -> LabelMeasure:
    """Return the measure for a kind of labels."""
    if labeled.kind == "classification":
        return Classes(labeled, seed)
    return Pairs(labeled, seed) if labeled.kind == "pairs" else ScoredPairs(labeled, seed)
