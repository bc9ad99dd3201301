"""Choosing among candidates: what a candidate is, how it scores, and the decision."""

from __future__ import annotations

from layerscope.choose.decide import decide
from layerscope.choose.types import Candidate, Claim, Decision, Limits, Scores

__all__ = ["Candidate", "Claim", "Decision", "Limits", "Scores", "decide"]
