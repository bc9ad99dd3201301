"""Judges: how good is a layer under a readout, told without a task? One file each; other packages
add theirs as entry points.

A judge gives a score per candidate (a readout and a layer), with the scores on resampled texts
beside it, so that a choice knows what it cannot tell apart. `layerscope.improve` asks them.
"""

from __future__ import annotations

from layerscope.core.candidates import ScoredCandidates
from layerscope.selection.judges.base import JUDGES, Candidates, Judge, combined, judges

__all__ = ["JUDGES", "Candidates", "Judge", "ScoredCandidates", "combined", "judges"]
