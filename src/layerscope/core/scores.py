"""Scores of candidates, and the same scores on resampled items: intervals, gains and ties.

Probes, evaluations, labels and judges all score candidates. What "tied" means is defined here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from layerscope.core.statistics import DRAWS, Interval

__all__ = ["DRAWS", "Scores", "add_sources", "weigh_by_reliability"]

_ROUNDING = 1e-12


@dataclass(frozen=True)
class Scores:
    """The scores that one source gives to candidates; higher is better.

    - `values`: one number a candidate; NaN where it is undefined.
    - `draws`: the scores on resamples of the items (candidates, resamples). The resamples are the
      same for all candidates, so that differences can be resampled. None: nothing is known about
      how certain the scores are.
    - `source`: the name of what scored, such as "labels".
    - `weight`: how much the source counts beside others.
    """

    values: np.ndarray
    draws: np.ndarray | None = None
    source: str = ""
    weight: float = 1.0

    @property
    def defined(self) -> np.ndarray:
        """A mask of the candidates that have a score."""
        return np.isfinite(self.values)

    def where(self, defined: np.ndarray) -> Scores:
        """Return a copy in which all other candidates are undefined."""
        draws = None if self.draws is None else np.where(defined[:, None], self.draws, np.nan)
        return replace(self, values=np.where(defined, self.values, np.nan), draws=draws)

    def best(self, allowed: np.ndarray | None = None) -> int:
        """Return the candidate with the highest score; of equal ones the first."""
        defined = self.defined if allowed is None else self.defined & allowed
        return int(np.where(defined, self.values, -np.inf).argmax())

    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        """Return lower and upper 95 % bounds of every score; NaN where they are not known."""
        return self._bounds(self.draws)

    def gains(self, reference: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return every score minus the reference's on the same items, with 95 % bounds."""
        low, high = self._bounds(None if self.draws is None else self.draws - self.draws[reference])
        return self.values - self.values[reference], low, high

    def gain(self, candidate: int, reference: int) -> Interval:
        """Return one score minus another, where neither was picked by its score."""
        if candidate == reference:
            return Interval(0.0, 0.0, 0.0)
        value = float(self.values[candidate] - self.values[reference])
        if self.draws is None:
            return Interval(value, value, value)
        low, high = np.nanquantile(self.draws[candidate] - self.draws[reference], [0.025, 0.975])
        return Interval(value, float(low), float(high))

    def error_of_gain(self, candidate: int, reference: int) -> float:
        """Return the standard error of one score minus another; zero where nothing is known."""
        if self.draws is None:
            return 0.0
        return float((self.draws[candidate] - self.draws[reference]).std(ddof=1))

    def gain_of_pick(self, candidate: int, reference: int, among: np.ndarray) -> Interval:
        """Return one score minus another, where the candidate was picked among some by any rule.

        The interval is made for all their gains at once: it holds for whichever was picked.
        """
        plain = self.gain(candidate, reference)
        if self.draws is None or candidate == reference:
            return plain
        moves = self.draws[among & self.defined] - self.draws[reference]
        moves = np.nan_to_num(moves - moves.mean(axis=1, keepdims=True))
        limit = _limit(np.abs(moves), moves.std(axis=1, ddof=1))
        half = limit * self.error_of_gain(candidate, reference)
        return Interval(plain.value, plain.value - half, plain.value + half)

    def tied(self, allowed: np.ndarray | None = None) -> np.ndarray:
        """Return a mask of the candidates that cannot be told from the best.

        In every draw each candidate gains or loses on the best, in units of that difference's
        standard error over the draws. The limit is what the largest of these gains stays below in
        95 % of the draws, so that all comparisons hold at once. A candidate that trails the best by
        no more standard errors is tied with it. Without draws only the best itself is.
        """
        defined = self.defined if allowed is None else self.defined & allowed
        tied = np.zeros(len(self.values), dtype=bool)
        if defined.any():
            best = self.best(allowed)
            tied[best] = True
            if self.draws is not None:
                lead = self.values[best] - self.values[defined]
                tied[defined] = lead <= self.slack(best, defined)[defined]
        return tied

    def slack(self, best: int, defined: np.ndarray) -> np.ndarray:
        """Return how far each known candidate may trail the best and still be tied with it."""
        slack = np.zeros(len(self.values))
        if self.draws is not None:
            lead = self.values[best] - self.values[defined]
            moves = np.nan_to_num(self.draws[best] - self.draws[defined] - lead[:, None])
            error = moves.std(axis=1, ddof=1)
            slack[defined] = _limit(moves, error) * error + _ROUNDING
        return slack

    def _bounds(self, draws: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        low, high = np.full((2, len(self.values)), np.nan)
        if draws is not None:
            defined = self.defined & np.isfinite(draws).any(axis=1)
            if defined.any():
                low[defined], high[defined] = np.nanquantile(draws[defined], [0.025, 0.975], axis=1)
        return low, high


def add_sources(scores: Sequence[Scores], among: np.ndarray) -> Scores:
    """Return the weighted sum of sources, each standardized over the candidates that all score.

    A single source stays as it is. Draws are summed as far as every source has them.
    """
    common = among & np.logical_and.reduce([source.defined for source in scores])
    if len(scores) == 1 or common.sum() < 2:
        return scores[0]
    return _weighted_sum([source.where(common) for source in scores])


def weigh_by_reliability(scores: Sequence[Scores]) -> Scores:
    """Return several sources as one: standardized, weighted by how reliable each is, and added.

    Reliability is the share of a source's variance over candidates that is not resampling noise. A
    source without draws is taken as it is. Weights of the sources count besides.
    """
    if len(scores) == 1:
        return scores[0]
    weighted = []
    for source in scores:
        scored = source.defined
        noise = 0.0 if source.draws is None else source.draws[scored].var(axis=1).mean()
        spread = source.values[scored].std() or 1.0
        reliability = max(0.0, 1 - noise / spread**2)
        weighted.append(replace(source, weight=source.weight * reliability))
    return replace(_weighted_sum(weighted), source="+".join(source.source for source in scores))


def _weighted_sum(scores: Sequence[Scores]) -> Scores:
    """Add standardized scores with their weights."""
    counts = [source.draws.shape[1] for source in scores if source.draws is not None]
    count = min(counts, default=0)
    values = np.zeros(len(scores[0].values))
    draws = np.zeros((len(values), count))
    for source in scores:
        scored = source.values[source.defined]
        mean = scored.mean()
        scale = source.weight / (scored.std() or 1.0)
        values = values + scale * (source.values - mean)
        resampled = source.values[:, None] if source.draws is None else source.draws[:, :count]
        draws = draws + scale * (resampled - mean)
    return Scores(values, draws if count else None, scores[0].source)


def _limit(moves: np.ndarray, error: np.ndarray) -> float:
    """Return what the largest of the moves (candidates, draws), in standard errors, stays below in
    95 % of the draws."""
    moving = error > _ROUNDING
    if not moving.any():
        return 0.0
    return float(np.quantile((moves[moving] / error[moving, None]).max(axis=0), 0.95))
