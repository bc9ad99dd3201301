"""Judges score layers under readouts without a task. One file each.

A judge gives a score per candidate, with the scores on resampled texts beside it, so that a choice
knows what it cannot tell apart. `layerscope.improve(judge=…)` takes one.
"""

from __future__ import annotations

from layerscope.choose.judges.base import Candidates, Judge
from layerscope.core.scores import Scores

__all__ = ["Candidates", "Judge", "Scores"]
