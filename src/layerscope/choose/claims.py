"""The claim of a choice that is made on the same items as its gain is measured on.

`claim_as_named` is for candidates that were named before they were scored, `claim_of_any` has an
interval that holds for every candidate at once (both in `decide`). `SplitScores` has a shorter one.

The best of many looks better than it is. Setting half of the items aside to measure the gain would
be honest, and wasteful. Resamples do the same: they give noise ε that varies as the scores X
themselves do. A choice made on X + τε knows nothing of X − ε/τ, as a choice made on one part of the
items knows nothing of the other part. So:

- The choice is made on X + τε, for one ε drawn by the seed. It has to lead what it replaces by more
  than the largest lead that 95 % of resamples of equal candidates show, all candidates at once.
- The gain is the mean of X − ε/τ over those ε under which the same choice is made. It is unbiased,
  given that the choice was made.
- The interval inverts the distribution of the gain given that the choice was made (Tian & Taylor
  2018). Of the intervals of choices that were made, 95 % hold the true gain.

Where every ε leads to the same choice, this is the plain difference with its plain interval.
`benchmarks/simulate.py` has bias, coverage and false moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from layerscope.choose.candidates import Claim
from layerscope.choose.decide import Rule
from layerscope.core.scores import Scores
from layerscope.core.statistics import Interval

NOISE = 0.5
"""τ: the noise of a choice in units of the scores' own. More of it leaves more to measure the gain
by, and chooses worse."""

LEVEL = 0.05
"""The share of cases in which equal candidates may be taken for better than the baseline."""

_NOISES = 1000
_GRID = 65
_REACH = 8.0
_TINY = 1e-12


@dataclass(frozen=True)
class SplitScores:
    """Scores split by noise into a part that chooses and a part that measures the gain.

    `noises` (candidates, noises) vary as the scores do; `moves` (candidates, draws) are the
    resamples about their mean. `lead` is the smallest lead of a choice over its baseline.
    """

    scores: Scores
    noises: np.ndarray
    moves: np.ndarray
    lead: float

    @classmethod
    def of(
        cls,
        scores: Scores,
        open_to: np.ndarray,
        baseline: int | Sequence[int],
        references: Iterable[int] = (),
        seed: int = 0,
    ) -> SplitScores:
        """Draw the noise.

        `open_to` is a mask of what may be chosen. `others` are further candidates of which gains
        will be claimed.
        """
        open_places = np.flatnonzero(open_to & scores.defined)
        stays = np.broadcast_to(np.asarray(baseline), len(scores.values))[open_places]
        places = np.unique([*open_places, *stays, *references])
        draws = np.zeros((len(places), 2)) if scores.draws is None else scores.draws[places]
        draws = draws[:, np.isfinite(draws).all(axis=0)]
        count = draws.shape[1]
        moves = np.zeros((len(scores.values), count))
        moves[places] = draws - draws.mean(axis=1, keepdims=True)
        normals = np.random.default_rng([seed, len(places)]).standard_normal((count, _NOISES))
        noises = np.zeros((len(scores.values), _NOISES))
        noises[places] = moves[places] @ normals / math.sqrt(count - 1)
        lead = math.inf
        if scores.draws is not None:
            # one limit for all, not one by each candidate's own error: those whose error came out
            # too small would be picked
            largest = (moves[open_places] - moves[stays]).max(axis=0)
            lead = float(np.quantile(largest, 1 - LEVEL)) * math.sqrt(1 + NOISE**2)
        return cls(scores, noises, moves, lead)

    @property
    def noise(self) -> np.ndarray:
        """The noise under which the choice is made."""
        return NOISE * self.noises[:, 0]

    def claim(self, rule: Rule, chosen: int, reference: int, candidate: int | None = None) -> Claim:
        """Claim the gain of a candidate over another, given that the rule made this choice.

        The candidate is the choice itself unless one is named.
        """
        place = chosen if candidate is None else candidate
        values = self.scores.values
        source = self.scores.source
        before = float(values[reference])
        after = float(values[place])
        lead = after - before
        moves = self.moves[place] - self.moves[reference]
        error = float(moves.std(ddof=1))
        if place == reference:
            return Claim(source, before, after, Interval(0.0, 0.0, 0.0), 0.0)
        if self.scores.draws is None:
            return Claim(source, before, after, Interval(lead))
        if error < _TINY:
            return Claim(source, before, after, Interval(lead, lead, lead), float(lead < 0))
        noisy = values[:, None] + NOISE * self.noises
        is_same = rule.choose(noisy) == chosen
        is_same[0] = True  # the choice itself
        noise = self.noises[place] - self.noises[reference]
        value = lead if is_same.all() else lead - float(noise[is_same].mean()) / NOISE
        # what of each candidate's score moves with the lead; the rest stays as it is
        along = self.moves @ moves / (len(moves) - 1) / error**2
        steps = np.linspace(-_REACH, _REACH, _GRID)
        chance = [
            (rule.choose(noisy + (along * error * step)[:, None]) == chosen).mean()
            for step in steps
        ]
        below = _truncated(steps, np.array(chance))
        low, high = (lead + error * _solve(below, goal) for goal in (0.975, 0.025))
        gain = Interval(value, min(low, value), max(high, value))
        return Claim(source, before, after, gain, 1 - below(-lead / error))


def _truncated(steps: np.ndarray, chance: np.ndarray) -> Callable[[float], float]:
    """Return the probability of a smaller lead than observed, by the true lead.

    Both are in standard errors from the observed lead. `chance` has the probability of the choice
    at each of the steps.
    """
    fine = np.linspace(-_REACH, _REACH, 1601)
    weight = np.log(np.maximum(np.interp(fine, steps, chance), _TINY))

    def below(center: float) -> float:
        density = weight - 0.5 * (fine - center) ** 2
        density = np.exp(density - density.max())
        smaller = density[fine < 0].sum() + 0.5 * density[fine == 0].sum()
        return float(smaller) / float(density.sum())

    return below


def _solve(below: Callable[[float], float], goal: float) -> float:
    """Return where a falling function has a value."""
    from scipy.optimize import brentq  # takes a while to import

    return float(brentq(lambda center: below(center) - goal, -2 * _REACH, 2 * _REACH))
