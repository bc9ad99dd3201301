"""Picking one of many candidates on the same items that its gain is then measured on, without
promising the luck of the draw.

The best of many looks better than it is. Setting half of the items aside to measure the gain would
be honest, and wasteful. The same is had from the resamples: they give noise ε that varies as the
scores X themselves do. A choice made on X + τε knows nothing of X − ε/τ, which is what a choice
made on one part of the items knows of the other part. So:

- the choice is the best of X + τε, for one ε drawn by the seed. It is made only if it leads what it
  would replace by more than
  the largest lead that 95 % of resamples of equal candidates show (all candidates at once): else
  nothing changes;
- the gain is the mean of X − ε/τ over those ε under which the same choice is made: unbiased, given
  that it was made;
- the interval inverts the distribution of the gain given that the choice was made (Tian & Taylor
  2018): 95 % of the intervals of
  choices that were made hold the true gain.

Where every ε leads to the same choice, this is the plain difference with its plain interval.
`benchmarks/simulate.py` has bias, coverage and false moves, before and after.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from layerscope.core.candidates import Place, ScoredCandidates
from layerscope.core.statistics import Interval

NOISE = 0.5
"""τ: the noise of a choice in units of the scores' own. More of it leaves more to measure the gain
by, and chooses worse."""

LEVEL = 0.05
"""How often candidates that are all equal may be taken for better than what one has."""

_NOISES, _GRID, _REACH = 1000, 65, 8.0
_FEWER = (200, 33)  # where the rule of the choice is slow
_TINY = 1e-12

Rule = Callable[[np.ndarray], int]
"""From scores (candidates,) in the order of `Picking.places` to the index of the choice."""


@dataclass(frozen=True)
class Picking:
    """A choice, and the noise draws under which it would be made again."""

    scored: ScoredCandidates
    places: list[Place]
    place: Place
    moved: bool
    _noise: np.ndarray  # (candidates, noises)
    _moves: np.ndarray  # (candidates, draws): the resamples about their mean
    _choose: Callable[[np.ndarray], np.ndarray]
    _judged: dict[tuple[Place, Place], tuple[Interval, float]] = field(default_factory=dict)

    def gain(self, one: Place, other: Place) -> Interval:
        """What one candidate gains over another, given that the choice was made."""
        return self._known(one, other)[0]

    def risk(self, one: Place, other: Place) -> float:
        """How sure it is, by the same distribution, that the gain is below zero."""
        return self._known(one, other)[1]

    def _known(self, one: Place, other: Place) -> tuple[Interval, float]:
        if (one, other) not in self._judged:
            self._judged[one, other] = self._judge(one, other)
        return self._judged[one, other]

    def _judge(self, one: Place, other: Place) -> tuple[Interval, float]:
        if one == other:
            return Interval(0.0, 0.0, 0.0), 0.0
        a, b = self.places.index(one), self.places.index(other)
        score = np.array([self.scored.score[place] for place in self.places])
        lead, moves = float(score[a] - score[b]), self._moves[a] - self._moves[b]
        error = float(moves.std(ddof=1))
        if self.scored.draws is None:
            return Interval(lead), math.nan
        if error < _TINY:
            return Interval(lead, lead, lead), float(lead < 0)
        at = self.places.index(self.place)
        noisy = NOISE * self._noise
        same = self._choose(score[:, None] + noisy) == at
        same[0] = True  # the choice itself
        noise = self._noise[a] - self._noise[b]
        value = lead if same.all() else lead - float(noise[same].mean()) / NOISE
        # how likely the choice is, had the lead been another one; what is not correlated with the
        # lead stays
        along = self._moves @ moves / (len(moves) - 1) / error**2
        steps = np.linspace(
            -_REACH, _REACH, _GRID if self._noise.shape[1] == _NOISES else _FEWER[1]
        )
        chance = np.array(
            [
                (self._choose((score + along * error * step)[:, None] + noisy) == at).mean()
                for step in steps
            ]
        )
        fine = np.linspace(-_REACH, _REACH, 1601)
        weight = np.log(np.maximum(np.interp(fine, steps, chance), _TINY))

        def below(center: float) -> float:
            """Probability of a smaller lead than observed, if the true lead is `center` standard
            errors away."""
            density = weight - 0.5 * (fine - center) ** 2
            density = np.exp(density - density.max())
            return float(density[fine < 0].sum() + 0.5 * density[fine == 0].sum()) / float(
                density.sum()
            )

        low, high = (lead + error * _solve(below, goal) for goal in (0.975, 0.025))
        return Interval(value, min(low, value), max(high, value)), 1 - below(-lead / error)


def _solve(falling: Callable[[float], float], goal: float) -> float:
    low, high = -2 * _REACH, 2 * _REACH
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > goal else (low, middle)
    return (low + high) / 2


def pick(
    scored: ScoredCandidates,
    allowed: np.ndarray,
    replaced: Callable[[Place], Place],
    also: tuple[Place, ...] = (),
    *,
    rule: Rule | None = None,
    forced: bool = False,
    seed: int = 0,
) -> Picking:
    """Pick one of the allowed candidates, or keep what it would replace.

    `replaced` says, for each candidate, what is kept if it does not clearly beat it. `also`:
    further places that gains will be asked about. `rule` chooses from the scores of
    `Picking.places`, the best by default; only allowed ones are to be chosen. `forced`: the choice
    is made whatever it gains. Without draws no lead is known to be more than luck: nothing else
    moves.

    >>> rng = np.random.default_rng(0)
    >>> items = rng.normal(size=(3, 400)) + [[0.0], [0.5], [0.0]]
    >>> drawn = items[:, rng.integers(0, 400, (500, 400))].mean(-1)
    >>> found = pick(ScoredCandidates(items.mean(1), drawn), np.full(3, True), lambda place: (2,))
    >>> found.place, found.moved, found.gain((1,), (2,)).low > 0
    ((1,), True, True)
    """
    open_to = [tuple(int(i) for i in place) for place in np.argwhere(allowed & scored.defined)]
    kept = [replaced(place) for place in open_to]
    places = list(dict.fromkeys([*open_to, *kept, *also]))
    back = np.array([places.index(place) for place in kept])
    score = np.array([scored.score[place] for place in places])
    draws = (
        np.zeros((len(places), 2))
        if scored.draws is None
        else np.stack([scored.draws[place] for place in places])
    )
    draws = draws[:, np.isfinite(draws).all(axis=0)]
    moves = draws - draws.mean(axis=1, keepdims=True)
    rng = np.random.default_rng([seed, len(places)])
    noise = (
        moves
        @ rng.standard_normal((moves.shape[1], _FEWER[0] if rule else _NOISES))
        / math.sqrt(moves.shape[1] - 1)
    )
    noise = np.asfortranarray(
        noise
    )  # the candidates of a noise side by side: the best is looked for among them
    # one limit for all, not one by each candidate's own error: those whose error came out too small
    # would be picked
    leads = moves[: len(open_to)] - moves[back]
    needed = (
        float(np.quantile(leads.max(axis=0), 1 - LEVEL)) * math.sqrt(1 + NOISE**2)
        if scored.draws is not None
        else math.inf
    )

    def choose(values: np.ndarray) -> np.ndarray:
        own = values[: len(open_to)]
        best = (
            own.argmax(axis=0) if rule is None else np.array([rule(column) for column in values.T])
        )
        if forced:
            return best
        noises = np.arange(values.shape[1])
        lead = values[best, noises] - values[back[best], noises]
        return np.where((lead > needed + _TINY) | (back[best] == best), best, back[best])

    at = int(choose((score + NOISE * noise[:, 0])[:, None])[0])
    moved = at < len(open_to) and back[at] != at
    return Picking(scored, places, places[at], bool(moved), noise, moves, choose)
