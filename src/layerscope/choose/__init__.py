"""Choosing among candidates: what a candidate is, how it scores, and the decision."""

from __future__ import annotations

from layerscope.choose.claims import SplitScores, claim_as_named, claim_of_any
from layerscope.choose.decide import Decision, add_sources, decide, weigh_by_reliability
from layerscope.choose.types import Candidate, Claim, Limits, layers_of
from layerscope.core.scores import Scores

__all__ = [
    "Candidate",
    "Claim",
    "Decision",
    "Limits",
    "Scores",
    "SplitScores",
    "add_sources",
    "claim_as_named",
    "claim_of_any",
    "decide",
    "layers_of",
    "weigh_by_reliability",
]
