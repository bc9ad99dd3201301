"""The function from scores to the choice, which a claim about the choice applies again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from layerscope.choose.types import Candidate, Claim, Limits
from layerscope.core.scores import Scores
from layerscope.errors import InvalidValueError, LayerscopeError

_ROUNDING = 1e-9
_TINY = 1e-12


@dataclass(frozen=True)
class Rule:
    """The function from scores to the choice, for given candidates and limits.

    `scores` are the expected scores. `baselines` has what stays for each candidate.
    """

    candidates: Sequence[Candidate]
    scores: Scores
    baselines: np.ndarray
    limits: Limits

    @classmethod
    def of(
        cls,
        candidates: Sequence[Candidate],
        scores: Scores,
        baseline: int | Sequence[int],
        limits: Limits,
    ) -> Rule:
        """Return the rule; an error if nothing may be chosen."""
        if not scores.defined.any():
            raise LayerscopeError(
                "no candidate has a score: all texts have the same vector everywhere."
            )
        baselines = np.broadcast_to(np.asarray(baseline), len(candidates))
        rule = cls(candidates, scores, baselines, limits)
        if not rule.within.any():
            known = rule.open if rule.open.any() else scores.defined
            raise over_budget(limits.budget or 0, float(rule.cost[known].min()))
        return rule

    @cached_property
    def cost(self) -> np.ndarray:
        """The cost of every candidate."""
        return np.array([candidate.cost for candidate in self.candidates])

    @cached_property
    def open(self) -> np.ndarray:
        """A mask of the candidates that are scored and not blocked."""
        return unblocked(self.candidates) & self.scores.defined

    @cached_property
    def within(self) -> np.ndarray:
        """A mask of the open candidates within the budget."""
        return self.open & affordable(self.candidates, self.limits)

    @cached_property
    def compared(self) -> np.ndarray:
        """A mask of the candidates among which the best is looked for."""
        return self.open if self.limits.same_readout else self.within

    @cached_property
    def best(self) -> int:
        """The compared candidate with the highest expected score."""
        return int(self._highest(self.scores.values[:, None], self.compared)[0])

    def choose(self, values: np.ndarray) -> np.ndarray:
        """Return the choices (n,) that scores (candidates, n) lead to."""
        chosen = self._cheapest_near(values)
        if self.limits.lead is None:
            return chosen
        columns = np.arange(values.shape[1])
        stays = self.baselines[chosen]
        lead = values[chosen, columns] - values[stays, columns]
        return np.where((lead > self.limits.lead + _TINY) | (stays == chosen), chosen, stays)

    def near(self, values: np.ndarray) -> np.ndarray:
        """Return a mask (candidates, n) of those within the budget that score high enough."""
        if self.limits.keep is not None:
            least = self.limits.keep * values[self.baselines[0]]
        else:
            best = self._highest(values, self.compared)
            slack = np.stack([self._slack(int(place)) for place in best], axis=1)
            least = values[best, np.arange(values.shape[1])] - slack
        return self._pool(values) & (values >= least - _ROUNDING)

    def _cheapest_near(self, values: np.ndarray) -> np.ndarray:
        """Return the cheapest near candidates; the highest within the budget where none is near."""
        limits = self.limits
        if limits.keep is None and not (limits.tolerance or limits.errors or limits.ties):
            return self._highest(values, self.within)
        near = self.near(values)
        cost = np.where(near, self.cost[:, None], np.inf)
        cheapest = np.where(near & (cost == cost.min(axis=0)), values, -np.inf).argmax(axis=0)
        pool = np.where(self._pool(values), values, -np.inf)
        return np.where(near.any(axis=0), cheapest, self._highest(pool, self.within))

    def _pool(self, values: np.ndarray) -> np.ndarray:
        """Return a mask (candidates, n) of those within the budget that the limits allow."""
        pool = np.broadcast_to(self.within[:, None], values.shape)
        if not self.limits.same_readout:
            return pool
        readouts = [candidate.readout for candidate in self.candidates]
        number = np.array([readouts.index(readout) for readout in readouts])
        same = pool & (number[:, None] == number[self._highest(values, self.compared)])
        return np.where(same.any(axis=0), same, pool)

    def _highest(self, values: np.ndarray, allowed: np.ndarray) -> np.ndarray:
        """Return the candidates (n,) with the highest scores; of equal ones the cheapest."""
        order = np.argsort(self.cost, kind="stable")
        order = order[allowed[order]]
        highest: np.ndarray = order[values[order].argmax(axis=0)]
        return highest

    @cached_property
    def _slack_by_best(self) -> dict[int, np.ndarray]:
        return {}

    def _slack(self, best: int) -> np.ndarray:
        """Return how far each candidate may trail the best for a cheaper choice."""
        if best not in self._slack_by_best:
            limits, scores = self.limits, self.scores
            slack = np.full(len(self.cost), limits.tolerance)
            if limits.errors and scores.draws is not None:
                error = (scores.draws[best] - scores.draws).std(axis=1)
                slack = np.maximum(slack, limits.errors * error)
            if limits.ties:
                slack = np.maximum(slack, scores.slack(best, self.open))
            self._slack_by_best[best] = slack
        return self._slack_by_best[best]


def unblocked(candidates: Sequence[Candidate]) -> np.ndarray:
    """Return a mask of the candidates that may be chosen."""
    return np.array([not candidate.blocked for candidate in candidates])


def affordable(candidates: Sequence[Candidate], limits: Limits) -> np.ndarray:
    """Return a mask of the candidates within the budget."""
    cost = np.array([candidate.cost for candidate in candidates])
    return cost <= (np.inf if limits.budget is None else limits.budget + _ROUNDING)


def over_budget(budget: float, least: float) -> InvalidValueError:
    """Return the error for a budget that no candidate keeps."""
    return InvalidValueError(
        f"no candidate costs at most {budget:g} of today's computation: the cheapest costs "
        f"{least:.2f}. Allow {least:.2f} or more."
    )


ClaimMaker = Callable[[Rule, int, int, int], Claim]
"""From a rule, its choice, and two candidates to what the first gains over the second."""
