"""How vectors are judged by labels: one file per kind of label."""

from __future__ import annotations

import numpy as np

from layerscope.selection.labels.measures.base import Items, Measure
from layerscope.selection.labels.measures.classes import Classes
from layerscope.selection.labels.measures.pairs import Pairs
from layerscope.selection.labels.measures.scores import Scores
from layerscope.selection.labels.read import Labelled

__all__ = ["Items", "Measure", "make_measure"]


def make_measure(labelled: Labelled, folds: int = 5, seed: int = 0) -> Measure:
    """The measure for a kind of labels; it reads vectors in the order of `labelled.texts`."""
    place = {text: i for i, text in enumerate(labelled.texts)}
    rows = [np.array([place[text] for text in side]) for side in labelled.sides]
    if labelled.kind == "classification":
        return Classes(rows[0], labelled.targets, folds, seed=seed)
    return (Scores if labelled.kind == "scores" else Pairs)((rows[0], rows[1]), labelled.targets, seed=seed)
