"""Candidates with their scores and the same scores on resampled items: which is best, by how much,
and what ties with it.

Probes, evaluations, measured choices, labels and judges all score candidates; what "tied" means is
said here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from layerscope.core.statistics import Interval

__all__ = ["DRAWS"]

DRAWS = 500
"""Resamples behind every tie, and the intervals of what is compared."""

Place = tuple[int, ...]
_ROUNDING = 1e-12


@dataclass(frozen=True)
class ScoredCandidates:
    """One score per candidate, higher is better, NaN where it is undefined; and the scores on
    resampled items.

    `score` is (layers,) or (readouts, layers); `readouts` and `layers` name its rows and columns
    where somebody needs the names. `draws` has one more axis, the last. Every candidate sees the
    same resamples, so that differences of candidates can be resampled as well. None: nothing is
    known about how certain the scores are. `judge` says who scored, `facts` what else is known, for
    the report.
    """

    score: np.ndarray
    draws: np.ndarray | None = None
    readouts: Sequence[str] = ()
    layers: Sequence[int] = ()
    judge: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def defined(self) -> np.ndarray:
        """Which candidates have a score."""
        return np.isfinite(self.score)

    def only(self, rows: Sequence[int]) -> ScoredCandidates:
        """The same for some of the rows, by their places."""
        which = list(rows)
        names = [self.readouts[i] for i in which] if self.readouts else ()
        draws = None if self.draws is None else self.draws[which]
        return ScoredCandidates(
            self.score[which], draws, names, self.layers, self.judge, self.facts
        )

    def where(self, known: np.ndarray) -> ScoredCandidates:
        """A copy in which all other candidates are undefined."""
        score = np.where(known, self.score, np.nan)
        draws = None if self.draws is None else np.where(known[..., None], self.draws, np.nan)
        return ScoredCandidates(score, draws, self.readouts, self.layers, self.judge, self.facts)

    def best(self, allowed: np.ndarray | None = None) -> Place:
        """The place of the highest score; of equals the first."""
        known = self.defined if allowed is None else self.defined & allowed
        values = np.where(known, self.score, -np.inf)
        return tuple(int(i) for i in np.unravel_index(int(values.argmax()), values.shape))

    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds of every score, 95 %; NaN where they are not known."""
        return self._bounds(self.draws)

    def gains(self, reference: Place) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Every score minus the reference's on the same items, with 95 % bounds; NaN where they are
        not known."""
        low, high = self._bounds(None if self.draws is None else self.draws - self.draws[reference])
        return self.score - self.score[reference], low, high

    def gain(self, one: Place, other: Place) -> Interval:
        """One score minus another with its 95 % interval over the items, where neither was picked
        by its score."""
        if one == other:
            return Interval(0.0, 0.0, 0.0)
        value = float(self.score[one] - self.score[other])
        if self.draws is None:
            return Interval(value, value, value)
        low, high = np.nanquantile(self.draws[one] - self.draws[other], [0.025, 0.975])
        return Interval(value, float(low), float(high))

    def gain_of_pick(self, one: Place, other: Place, among: np.ndarray) -> Interval:
        """One score minus another, where the one was picked among some candidates, by whatever
        rule.

        The interval is that of all their gains at once: it holds for whichever of them was picked.
        """
        plain = self.gain(one, other)
        if self.draws is None or one == other:
            return plain
        moves = self.draws[among & self.defined] - self.draws[other]
        moves = np.nan_to_num(moves - moves.mean(axis=-1, keepdims=True))
        limit = _limit(np.abs(moves), moves.std(axis=-1, ddof=1))
        half = limit * float((self.draws[one] - self.draws[other]).std(ddof=1))
        return Interval(plain.value, plain.value - half, plain.value + half)

    def _bounds(self, drawn: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        low, high = np.full((2, *self.score.shape), np.nan)
        if drawn is not None:
            known = self.defined & np.isfinite(drawn).any(-1)
            if known.any():
                low[known], high[known] = np.nanquantile(drawn[known], [0.025, 0.975], axis=-1)
        return low, high

    def tied(self, allowed: np.ndarray | None = None) -> np.ndarray:
        """Which candidates cannot be told from the best, at 95 % for all comparisons at once.

        In every draw each candidate gains or loses on the best, in units of that difference's
        standard error over the draws. The limit is what the largest of these gains stays below in
        95 % of the draws: a candidate that trails the best by no more standard errors than that is
        tied with it. Without draws only the best itself is.
        """
        known = self.defined if allowed is None else self.defined & allowed
        tied = np.zeros(self.score.shape, dtype=bool)
        if not known.any():
            return tied
        best = self.best(allowed)
        if self.draws is None:
            tied[best] = True
            return tied
        tied[known] = self.score[best] - self.score[known] <= self.slack(best, known)[known]
        return tied

    def slack(self, best: Place, known: np.ndarray) -> np.ndarray:
        """How far each known candidate may trail the best one and still be tied with it; known from
        the draws alone."""
        slack = np.zeros(self.score.shape)
        if self.draws is not None:
            lead = self.score[best] - self.score[known]
            moves = np.nan_to_num(
                (self.draws[best] - self.draws[known]) - lead[:, None]
            )  # (candidates, draws)
            error = moves.std(axis=1, ddof=1)
            limit = _limit(moves, error)
            slack[known] = limit * error + _ROUNDING
        return slack


def _limit(moves: np.ndarray, error: np.ndarray) -> float:
    """Return what the largest of the moves (candidates, draws), in standard errors, stays below in
    95 % of the draws."""
    moving = error > _ROUNDING
    if not moving.any():
        return 0.0
    return float(np.quantile((moves[moving] / error[moving, None]).max(axis=0), 0.95))
