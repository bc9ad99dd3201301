"""`decide`: the highest expected score, the cheapest that keeps enough, budgets and claims."""

from __future__ import annotations

import numpy as np
import pytest

from layerscope.choose import Candidate, Limits, Scores, decide, weigh_by_reliability
from layerscope.errors import InvalidValueError

WAYS = [
    Candidate((0, 1, 2, 3), cost=1.0),
    Candidate((0, 1, 3), cost=0.75),
    Candidate((0, 3), cost=0.5),
    Candidate((0,), cost=0.25),
]


def scores(values: list[float], noise: float = 0.001, seed: int = 0, weight: float = 1) -> Scores:
    drawn = np.random.default_rng(seed).normal(0, noise, (len(values), 500))
    given = np.array(values)
    return Scores(given, given[:, None] + drawn, "encoder", weight)


AGREEMENT = scores([1.0, 0.99, 0.96, 0.7])


def test_without_limits_the_highest_score_is_chosen():
    decision = decide(WAYS, [AGREEMENT], 0)
    assert (decision.chosen, decision.best, decision.baseline) == (0, 0, 0)


@pytest.mark.parametrize(("budget", "chosen"), [(0.8, 1), (0.75, 1), (0.74, 2), (0.3, 3)])
def test_a_budget_is_kept(budget: float, chosen: int):
    assert decide(WAYS, [AGREEMENT], 0, Limits(budget=budget)).chosen == chosen


@pytest.mark.parametrize(("keep", "chosen"), [(0.5, 3), (0.95, 2), (0.985, 1), (0.995, 0)])
def test_keep_takes_the_cheapest_that_keeps_enough(keep: float, chosen: int):
    decision = decide(WAYS, [AGREEMENT], 0, Limits(keep=keep))
    assert decision.chosen == chosen
    assert decision.kept


def test_what_cannot_be_kept_within_the_budget_is_said():
    decision = decide(WAYS, [AGREEMENT], 0, Limits(budget=0.5, keep=0.99))
    assert not decision.kept
    assert decision.chosen == 2


def test_a_budget_below_every_candidate_is_an_error():
    with pytest.raises(InvalidValueError, match=r"the cheapest costs 0.25. Allow 0.25 or more"):
        decide(WAYS, [AGREEMENT], 0, Limits(budget=0.1))


def test_a_blocked_candidate_is_never_chosen():
    ways = [*WAYS[:2], Candidate((0, 3), cost=0.5, blocked="it cannot be written"), WAYS[3]]
    assert decide(ways, [AGREEMENT], 0, Limits(budget=0.5)).chosen == 3


def test_a_tolerance_takes_the_cheapest_that_is_near():
    assert decide(WAYS, [AGREEMENT], 0, Limits(tolerance=0.02)).chosen == 1


def test_of_equal_scores_the_cheaper_is_chosen():
    assert decide(WAYS, [scores([1.0, 1.0, 1.0, 0.2], noise=0.0)], 0).chosen == 2


def test_a_noisy_source_counts_less():
    clear, noisy = scores([0.5, 0.6, 0.4, 0.4], 0.001), scores([0.1, 0.2, 0.9, 0.1], 2.0)
    assert decide(WAYS, [weigh_by_reliability([clear, noisy])], 0).chosen == 1
    sure = scores([0.1, 0.2, 0.9, 0.1], 0.001, weight=2)
    assert decide(WAYS, [weigh_by_reliability([clear, sure])], 0).chosen == 2


def test_the_claim_is_the_first_sources_with_an_interval_of_the_change():
    claim = decide(WAYS, [AGREEMENT], 0, Limits(budget=0.5)).claim
    assert (claim.source, claim.before, claim.after) == ("encoder", 1.0, 0.96)
    low, high = claim.gain.low, claim.gain.high
    assert low < -0.04 < high
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(2) * 0.001, rel=0.2)
