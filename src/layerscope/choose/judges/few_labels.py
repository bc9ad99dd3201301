"""A few labels: a cross-validated probe and cosines for classes, cosines for pairs."""

from __future__ import annotations

import numpy as np

from layerscope.choose.judges.base import TEXTS, Candidates
from layerscope.choose.labels.read import Labeled
from layerscope.choose.labels.scores import gather
from layerscope.core.scores import Scores

LABELS_SHARE = 2.0
"""The weight of labels next to an encoder: they are about the task itself."""


class FewLabels:
    """The score on labeled examples; `view` names the vectors of the examples' texts."""

    name = "labels"
    views: tuple[str, ...] = ()

    def __init__(self, labeled: Labeled, folds: int = 5, view: str = TEXTS) -> None:
        self.labeled, self.folds, self.view = labeled, folds, view

    def judge(self, candidates: Candidates, *, seed: int = 0) -> Scores:
        """Score from 0 to 1, smoothed over neighboring layers."""
        evidence = gather(
            self.labeled,
            candidates.readouts,
            candidates.layers,
            lambda readout: np.asarray(candidates.vectors(readout, self.view)),
            folds=self.folds,
            seed=seed,
        )
        return evidence.smooth(evidence.scores(seed=seed))
