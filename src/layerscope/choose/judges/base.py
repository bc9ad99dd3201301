"""A judge scores candidates without a task, with the spread of the scores over resampled texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from layerscope.core.readout import Readout
from layerscope.core.scores import DRAWS, Scores
from layerscope.core.statistics import bootstrap_weights

TEXTS = "texts"
"""The view that every judge may use: the texts as they are."""


class Candidates(Protocol):
    """Layers of a model under several readouts, as vectors of the same texts.

    The candidates of a judge are all layers under the first readout, then all under the second, and
    so on.
    """

    readouts: Sequence[Readout]
    layers: Sequence[int]

    def vectors(self, readout: Readout, view: str = TEXTS) -> np.ndarray | Tensor:
        """Return (layers, texts, D) under a readout, as an array or a tensor on any device.

        NaN throughout at a layer where all texts have the same vector.
        """
        ...


@runtime_checkable
class Judge(Protocol):
    """A way to tell good candidates from bad ones. `views` are those it needs besides the texts."""

    name: str
    views: tuple[str, ...]

    def judge(self, candidates: Candidates, *, seed: int = 0) -> Scores:
        """Score every candidate."""
        ...


def text_weights(count: int, seed: int = 0) -> np.ndarray:
    """Return how often each of `count` texts is drawn, as shares (draws, count)."""
    return bootstrap_weights(count, DRAWS, [seed, count, DRAWS]) / count


def scores_of_items(source: str, items: np.ndarray, seed: int, sides: int = 2) -> Scores:
    """Return scores that are the mean of what each text contributes, items (candidates, texts).

    A text counts as often as its neighbors are looked up and as often as it is a neighbor. With two
    `sides`, deviations of the resampled means are doubled, which is their first-order effect.
    """
    values = items.mean(axis=1, dtype=np.float64)
    drawn = items.astype(np.float64) @ text_weights(items.shape[1], seed).T
    return Scores(values, values[:, None] + sides * (drawn - values[:, None]), source)


def rank_of(values: np.ndarray) -> np.ndarray:
    """Return ranks along the first axis from 0 (worst) to 1 (best); undefined values stay NaN.

    >>> rank_of(np.array([3.0, 1.0, np.nan, 2.0])).tolist()
    [1.0, 0.0, nan, 0.5]
    """
    known = np.isfinite(values)
    filled = np.where(known, values, -np.inf)
    order = filled.argsort(0, kind="stable").argsort(0, kind="stable").astype(np.float64)
    missing = (~known).sum(0)
    return np.where(known, (order - missing) / np.maximum(known.sum(0) - 1, 1), np.nan)
