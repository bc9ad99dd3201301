"""What every kind of label offers: what each example contributes, and the score of any weighting of the examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Items:
    """What each example contributes to the score (layers, n).

    `rounds` (rounds, layers, n) is there where something is trained: the same without the examples that a round tests, and, for
    those, how they are then judged. `accuracy` (layers, n) is there for classes: how often each example was put right.
    """

    judged: np.ndarray
    rounds: np.ndarray | None = None
    accuracy: np.ndarray | None = None


class Measure(Protocol):
    """One way of judging vectors by labels. `tested` (rounds, n) says which examples a round leaves out of the choice."""

    name: str
    tested: np.ndarray

    def items(self, vectors: np.ndarray) -> Items:
        """What each example contributes, from vectors (layers, texts, D); NaN throughout where a layer is undefined."""
        ...

    def score(self, judged: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """The score (layers, draws) of contributions (layers, n) under weights (draws, n): how often each counts."""
        ...

    def chance(self, weights: np.ndarray) -> np.ndarray:
        """The score (draws,) to expect of vectors that know nothing of the labels."""
        ...


def weighted_mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(layers, draws) from (layers, n) and (draws, n)."""
    return values.astype(np.float64) @ (weights / weights.sum(1, keepdims=True)).T


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Cosine of each pair, (layers, n) from twice (layers, n, D)."""
    product = np.einsum("lnd,lnd->ln", first, second, dtype=np.float64)
    sizes = [np.linalg.norm(side.astype(np.float64), axis=-1) for side in (first, second)]
    return product / np.maximum(sizes[0] * sizes[1], 1e-30)
