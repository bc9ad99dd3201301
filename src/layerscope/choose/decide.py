"""The decision: the candidate with the highest expected score, or the cheapest that keeps enough."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from layerscope.choose.types import Candidate, Claim, Decision, Limits, Scores
from layerscope.errors import InvalidValueError

__all__ = ["decide"]

_ROUNDING = 1e-9


def decide(
    candidates: Sequence[Candidate],
    scores: Sequence[Scores],
    baseline: int,
    limits: Limits | None = None,
) -> Decision:
    """Choose a candidate.

    Each source is shrunk toward its mean over the candidates by its own noise, and the sources are
    added with their weights. Of the candidates within the budget the one with the highest expected
    score is chosen; with `keep`, the cheapest whose score by the first source is at least that
    share of the baseline's. The claim is the first source's.

    >>> ways = [Candidate((0, 1)), Candidate((0,), cost=0.5)]
    >>> source = Scores("encoder", np.array([1.0, 0.9]), np.array([[1.0, 1.0], [0.89, 0.91]]))
    >>> decide(ways, [source], 0, Limits(budget=0.5)).chosen
    1
    """
    limits = limits or Limits()
    cost = np.array([candidate.cost for candidate in candidates])
    allowed = np.array([not candidate.blocked for candidate in candidates])
    if limits.budget is not None:
        allowed &= cost <= limits.budget + _ROUNDING
    if not allowed.any():
        raise InvalidValueError(
            f"no candidate costs at most {limits.budget:g} of today's computation: the cheapest "
            f"costs {cost.min():.2f}. Use budget={cost.min():.2f} or more."
        )
    expected = _expected(scores, cost.shape)
    best = _highest(expected, cost, allowed)
    chosen, kept = best, True
    if limits.keep is not None:
        values = scores[0].values
        enough = allowed & (values >= limits.keep * values[baseline] - _ROUNDING)
        kept = bool(enough.any())
        chosen = _cheapest(expected, cost, enough) if kept else best
    elif limits.tolerance > 0:
        chosen = _cheapest(
            expected, cost, allowed & (expected >= expected[best] - limits.tolerance)
        )
    return Decision(chosen, best, baseline, expected, _claim(scores[0], baseline, chosen), kept)


def _expected(scores: Sequence[Scores], shape: tuple[int, ...]) -> np.ndarray:
    """Add the sources, each shrunk toward its mean by its own noise."""
    total, weights = np.zeros(shape), 0.0
    for source in scores:
        spread = float(np.nanvar(source.values))
        noise = float(np.nanmean(np.nanvar(source.draws, axis=1)))
        trust = max(0.0, 1 - noise / spread) if spread > 0 else 0.0
        mean = float(np.nanmean(source.values))
        total += source.weight * (mean + trust * (source.values - mean))
        weights += source.weight
    expected: np.ndarray = total / weights
    return expected


def _highest(expected: np.ndarray, cost: np.ndarray, allowed: np.ndarray) -> int:
    """Return the candidate with the highest score; of equal ones the cheapest."""
    order = np.lexsort((cost, -np.where(allowed, expected, -np.inf)))
    return int(order[0])


def _cheapest(expected: np.ndarray, cost: np.ndarray, allowed: np.ndarray) -> int:
    """Return the cheapest candidate; of equally cheap ones that with the highest score."""
    order = np.lexsort((-expected, np.where(allowed, cost, np.inf)))
    return int(order[0])


def _claim(source: Scores, baseline: int, chosen: int) -> Claim:
    change = source.draws[chosen] - source.draws[baseline]
    low, high = np.quantile(change, (0.025, 0.975))
    before, after = source.values[baseline], source.values[chosen]
    return Claim(source.source, float(before), float(after), (float(low), float(high)))
