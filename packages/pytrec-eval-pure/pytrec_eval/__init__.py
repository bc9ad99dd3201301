"""Retrieval measures by trec_eval's rules, in plain Python: the part of `pytrec_eval` that mteb
calls.

    >>> RelevanceEvaluator({"q": {"a": 1}}, {"P.1,2"}).evaluate({"q": {"a": 0.2, "b": 0.9}})
    {'q': {'P_1': 0.0, 'P_2': 0.5}}

Documents are ranked by score in single precision, as trec_eval holds it; equal scores are ranked by
name, last in the alphabet first. A judgement of at least 1 makes a document relevant. Queries
without judgements are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import log2

import numpy as np

__all__ = ["RelevanceEvaluator", "supported_measures"]

Measure = Callable[
    [list[int], list[int], int], float
]  # judgements in ranked order, ideal order of all judgements, cutoff


def _average_precision(ranked: list[int], ideal: list[int], cutoff: int) -> float:
    found, total = 0, 0.0
    for place, judgement in enumerate(ranked[:cutoff], 1):
        if judgement >= 1:
            found += 1
            total += found / place
    return total / len(ideal) if ideal else 0.0


def _gain(judgements: list[int]) -> float:
    return sum(
        judgement / log2(place + 1)
        for place, judgement in enumerate(judgements, 1)
        if judgement > 0
    )


def _ndcg(ranked: list[int], ideal: list[int], cutoff: int) -> float:
    return _gain(ranked[:cutoff]) / _gain(ideal[:cutoff]) if ideal else 0.0


def _relevant(ranked: list[int], cutoff: int) -> int:
    return sum(judgement >= 1 for judgement in ranked[:cutoff])


_MEASURES: dict[str, Measure] = {
    "map_cut": _average_precision,
    "ndcg_cut": _ndcg,
    "recall": lambda ranked, ideal, cutoff: (
        _relevant(ranked, cutoff) / len(ideal) if ideal else 0.0
    ),
    "P": lambda ranked, ideal, cutoff: _relevant(ranked, cutoff) / cutoff,
    "success": lambda ranked, ideal, cutoff: float(_relevant(ranked, cutoff) > 0),
}
supported_measures = frozenset(_MEASURES)


class RelevanceEvaluator:
    """Scores rankings against judgements: `measures` are names with cutoffs, such as
    `ndcg_cut.1,10`."""

    def __init__(
        self, query_relevance: Mapping[str, Mapping[str, int]], measures: Iterable[str]
    ) -> None:
        self.query_relevance = query_relevance
        self.measures: list[tuple[str, int]] = []
        for given in sorted(measures):
            name, _, cutoffs = given.partition(".")
            if name not in _MEASURES or not cutoffs:
                valid = ", ".join(sorted(_MEASURES))
                raise ValueError(
                    f"measure {given!r} is not available here. Valid: {valid}, each with cutoffs "
                    "(`P.1,10`)."
                )
            self.measures += [(name, int(cutoff)) for cutoff in cutoffs.split(",")]

    def evaluate(self, scores: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
        """The measures of every query that has judgements."""
        return {
            query: self._evaluate(query, found)
            for query, found in scores.items()
            if query in self.query_relevance
        }

    def _evaluate(self, query: str, found: Mapping[str, float]) -> dict[str, float]:
        judged = self.query_relevance[query]
        order = sorted(((np.float32(score), name) for name, score in found.items()), reverse=True)
        ranked = [int(judged.get(name, 0)) for _, name in order]
        ideal = sorted(
            (int(judgement) for judgement in judged.values() if judgement >= 1), reverse=True
        )
        return {
            f"{name}_{cutoff}": _MEASURES[name](ranked, ideal, cutoff)
            for name, cutoff in self.measures
        }
