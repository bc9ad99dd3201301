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

    @property
    def readouts(self) -> Sequence[Readout]:
        """The readouts, in the order of the scores."""
        ...

    @property
    def layers(self) -> Sequence[int]:
        """The layers under each readout."""
        ...

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
    """Return the share of each of `count` texts in each resample (draws, count)."""
    return bootstrap_weights(count, DRAWS, [seed, count, DRAWS]) / count


def scores_of_items(source: str, items: np.ndarray, seed: int, sides: int = 2) -> Scores:
    """Return scores that are the mean of the texts' contributions, items (candidates, texts).

    A text counts as often as its neighbors are looked up and as often as it is a neighbor. With two
    `sides`, deviations of the resampled means are doubled, which is their first-order effect.
    """
    values = items.mean(axis=1, dtype=np.float64)
    means = items.astype(np.float64) @ text_weights(items.shape[1], seed).T
    return Scores(values, values[:, None] + sides * (means - values[:, None]), source)
