"""Choosing among candidates: what a candidate is, how it scores, and the decision."""

from __future__ import annotations

from layerscope.choose.candidates import Candidate, Claim, Limits, layers_of
from layerscope.choose.claims import SplitScores
from layerscope.choose.decide import (
    Decision,
    claim_of_any,
    decide,
    decide_by_judge,
)
from layerscope.core.scores import Scores, weigh_by_reliability

__all__ = [
    "Candidate",
    "Claim",
    "Decision",
    "Limits",
    "Scores",
    "SplitScores",
    "claim_of_any",
    "decide",
    "decide_by_judge",
    "layers_of",
    "weigh_by_reliability",
]
