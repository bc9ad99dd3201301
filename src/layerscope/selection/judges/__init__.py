"""Judges: how good is a layer under a readout, told without a task? One file each.

A judge gives a score per candidate (a readout and a layer), with the scores on resampled texts
beside it, so that a choice knows what it cannot tell apart. `layerscope.improve` asks them.
"""

from __future__ import annotations

from layerscope.core.candidates import ScoredCandidates
from layerscope.selection.judges.base import Candidates, Judge, combined

__all__ = ["Candidates", "Judge", "ScoredCandidates", "combined"]
