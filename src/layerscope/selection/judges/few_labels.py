"""A few labels: a cross-validated probe and cosines for classes, cosines for pairs. See
`layerscope.selection.labels`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from layerscope.core.candidates import ScoredCandidates
from layerscope.selection.judges.base import TEXTS, Candidates
from layerscope.selection.labels.decide import gather, score_candidates, smooth
from layerscope.selection.labels.read import Labeled

LABELS_SHARE = 2.0
"""What labels count next to an encoder: they are about the task itself."""


class FewLabels:
    """The score on labeled examples; `view` is the name under which the candidates have vectors of
    the examples' texts."""

    name = "labels"
    summary = "the score on a few labeled examples"
    views: tuple[str, ...] = ()

    def __init__(self, labeled: Labeled, folds: int = 5, view: str = TEXTS) -> None:
        self.labeled, self.folds, self.view = labeled, folds, view

    def judge(self, candidates: Candidates, *, seed: int = 0) -> ScoredCandidates:
        """Scores smoothed over neighboring layers, from 0 to 1, on the examples and on resamples of
        them."""
        evidence = gather(
            self.labeled, candidates.readouts, candidates.layers,
            lambda readout: np.asarray(candidates.vectors(readout, self.view)),
            folds=self.folds, seed=seed,
        )  # fmt: skip
        return replace(smooth(score_candidates(evidence, seed=seed)), judge=self.name)
