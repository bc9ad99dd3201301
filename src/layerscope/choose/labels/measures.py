"""Measures of vectors by labels: the contribution of each example, and the score of a weighting.

Three kinds of labels: texts with classes, pairs that belong together or not, and pairs with a
score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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


class LabelMeasure(Protocol):
    """One way of judging vectors by labels. `tested` (rounds, n) says which examples a round leaves
    out of the choice."""

    name: str
    tested: np.ndarray

    def items(self, vectors: np.ndarray) -> Contributions:
        """Return the contributions, from vectors (layers, texts, D).

        They are NaN throughout where a layer is undefined.
        """
        ...

    def score(self, judged: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return scores (layers, draws) of contributions (layers, n) under weights (draws, n)."""
        ...

    def chance(self, weights: np.ndarray) -> np.ndarray:
        """Return the score (draws,) to expect of vectors that know nothing of the labels."""
        ...


def weighted_mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return means (layers, draws) of values (layers, n) under weights (draws, n)."""
    return values.astype(np.float64) @ (weights / weights.sum(1, keepdims=True)).T


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the cosine of each pair (layers, n) of vectors (layers, n, D)."""
    product = np.einsum("lnd,lnd->ln", first, second, dtype=np.float64)
    sizes = [np.linalg.norm(side.astype(np.float64), axis=-1) for side in (first, second)]
    return product / np.maximum(sizes[0] * sizes[1], 1e-30)


_FITS = 512
"""About how many examples all repetitions together predict, so that many examples do not take many
times longer."""


class Classes:
    """`rows` are the places of the examples' texts among the texts; `targets` are class numbers."""

    name = "auc"

    def __init__(
        self, rows: np.ndarray, targets: np.ndarray, folds: int = 5, seed: int = 0
    ) -> None:
        self.rows, self.targets, self.folds, self.seed = rows, targets, folds, seed
        counts = np.bincount(targets)
        repeats = int(np.clip(_FITS // len(targets), 1, 4))
        self.splits = stratified_folds(targets, folds, repeats, seed)
        self.tested = tested_in_rounds(targets, repeats, seed)
        self.goal = np.eye(len(counts))[targets]
        # every class counts the same in the fit, as where a task trains on so many examples of each
        self.weights = (len(targets) / (counts > 0).sum()) / counts[targets]

    def items(self, vectors: np.ndarray) -> Contributions:
        """Return how well each example is separated from those of other classes.

        That is with all examples, and in every round.
        """
        chosen = vectors[:, self.rows]
        known = np.isfinite(chosen).all((1, 2))
        judged = np.full((len(vectors), len(self.targets)), np.nan)
        right, rounds = judged.copy(), np.repeat(judged[None], len(self.tested), 0)
        if known.any():
            gram = grams(chosen[known])
            probe, near = (
                Probe(gram, self.goal, self.weights),
                Neighbors(gram.numpy(), self.targets),
            )
            predicted, every = probe.left_out(self.splits), np.ones(len(self.targets), dtype=bool)
            right[known] = (predicted.argmax(-1) == self.targets).mean(0)
            judged[known] = _both(
                separation(predicted, self.targets), near.separation(every, every)
            )
            for i, test in enumerate(self.tested):
                splits = stratified_folds(self.targets[~test], self.folds, 1, self.seed + i)
                inner, outer = probe.without(test, splits)
                rounds[i][np.ix_(known, ~test)] = _both(
                    separation(inner, self.targets[~test]), near.separation(~test, ~test)
                )
                rounds[i][np.ix_(known, test)] = _both(
                    separation(outer[None], self.targets[test]), near.separation(test, every)
                )
        return Contributions(judged, rounds, right)

    def score(self, judged: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the mean over the examples."""
        return weighted_mean(judged, weights)

    def chance(self, weights: np.ndarray) -> np.ndarray:
        """Return one half: without knowledge an example ranks above another class half of the time."""
        return np.full(len(weights), 0.5)


def _both(by_probe: np.ndarray, by_cosine: np.ndarray) -> np.ndarray:
    """Return the mean (layers, n) of both, with deviations from the layer's mean doubled.

    An example counts on both sides of its comparisons, which resampling must see.
    """
    share = (by_probe + by_cosine) / 2
    mean = share.mean(-1, keepdims=True)
    return mean + 2 * (share - mean)


class Pairs:
    """`sides` are the places of each pair's two texts among the texts; `targets` are 0 or 1."""

    name = "average_precision"

    def __init__(
        self,
        sides: tuple[np.ndarray, np.ndarray],
        targets: np.ndarray,
        repeats: int = 20,
        seed: int = 0,
    ) -> None:
        self.first, self.second = sides
        self.targets = targets.astype(np.float64)
        self.tested = tested_in_rounds(self.strata(), repeats, seed)

    def strata(self) -> np.ndarray:
        """Return what the rounds leave out alike."""
        return self.targets

    def items(self, vectors: np.ndarray) -> Contributions:
        """Return the cosine of every pair."""
        return Contributions(cosines(vectors[:, self.first], vectors[:, self.second]))

    def score(self, judged: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return average precisions (layers, draws); equal cosines are taken together."""
        return average_precision(judged, self.targets, weights)

    def chance(self, weights: np.ndarray) -> np.ndarray:
        """Return the mean average precision of random orders.

        For few pairs it is above the share of those that belong together.
        """
        count, hits = weights.sum(1), (weights * self.targets).sum(1)
        out = np.empty(len(weights))
        for i, (n, p) in enumerate(zip(count, hits, strict=True)):
            rank = np.arange(1, int(n) + 1)
            out[i] = ((1 + (rank - 1) * (p - 1) / max(n - 1, 1)) / rank).mean()
        return out


class ScoredPairs(Pairs):
    """Pairs whose `targets` are scores."""

    name = "spearman"

    def strata(self) -> np.ndarray:
        """Return one stratum: scores have no classes."""
        return np.zeros(len(self.targets))

    def score(self, judged: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return Spearman's ρ (layers, draws); an example that counts twice is two equal ones."""
        return spearman(judged, self.targets, weights)

    def chance(self, weights: np.ndarray) -> np.ndarray:
        """Return no correlation."""
        return np.zeros(len(weights))


__all__ = ["Contributions", "LabelMeasure", "make_measure"]


def make_measure(labeled: Labeled, folds: int = 5, seed: int = 0) -> LabelMeasure:
    """Return the measure for a kind of labels; it reads vectors in the order of `labeled.texts`."""
    place = {text: i for i, text in enumerate(labeled.texts)}
    rows = [np.array([place[text] for text in side]) for side in labeled.sides]
    if labeled.kind == "classification":
        return Classes(rows[0], labeled.targets, folds, seed=seed)
    return (ScoredPairs if labeled.kind == "scores" else Pairs)(
        (rows[0], rows[1]), labeled.targets, seed=seed
    )
