"""`decide`: the highest expected score, the cheapest that keeps enough, budgets and claims."""

from __future__ import annotations

import numpy as np
import pytest

from layerscope.choose import (
    Candidate,
    Limits,
    Scores,
    decide,
    decide_by_judge,
    weigh_by_reliability,
)
from layerscope.choose.decide import LABELS_DISAGREE, LabelCheck, weight_of_labels
from layerscope.errors import InvalidValueError

CANDIDATES = [
    Candidate((0, 1, 2, 3), cost=1.0),
    Candidate((0, 1, 3), cost=0.75),
    Candidate((0, 3), cost=0.5),
    Candidate((0,), cost=0.25),
]


def scores(*values: float, noise: float = 0.001, weight: float = 1) -> Scores:
    drawn = np.random.default_rng(0).normal(0, noise, (len(values), 500))
    return Scores(np.array(values), np.array(values)[:, None] + drawn, "encoder", weight)


AGREEMENT = scores(1.0, 0.99, 0.96, 0.7)


@pytest.mark.parametrize(
    ("limits", "chosen", "kept"),
    [
        (Limits(), 0, True),
        (Limits(budget=0.8), 1, True),
        (Limits(budget=0.75), 1, True),
        (Limits(budget=0.74), 2, True),
        (Limits(budget=0.3), 3, True),
        (Limits(keep=0.5), 3, True),
        (Limits(keep=0.95), 2, True),
        (Limits(keep=0.985), 1, True),
        (Limits(keep=0.995), 0, True),
        (Limits(budget=0.5, keep=0.99), 2, False),  # nothing within the budget keeps enough
        (Limits(tolerance=0.02), 1, True),
    ],
)
def test_limits_lead_to_a_choice(limits: Limits, chosen: int, kept: bool):
    decision = decide(CANDIDATES, [AGREEMENT], 0, limits)
    assert (decision.chosen, decision.kept, decision.baseline) == (chosen, kept, 0)


def test_a_budget_below_every_candidate_is_an_error():
    with pytest.raises(InvalidValueError, match=r"the cheapest costs 0.25. Allow 0.25 or more"):
        decide(CANDIDATES, [AGREEMENT], 0, Limits(budget=0.1))


def test_a_blocked_candidate_is_never_chosen():
    blocked = Candidate((0, 3), cost=0.5, blocked="it cannot be written")
    candidates = [*CANDIDATES[:2], blocked, CANDIDATES[3]]
    assert decide(candidates, [AGREEMENT], 0, Limits(budget=0.5)).chosen == 3


def test_of_equal_scores_the_cheaper_is_chosen():
    assert decide(CANDIDATES, [scores(1.0, 1.0, 1.0, 0.2, noise=0.0)], 0).chosen == 2


def test_a_noisy_source_counts_less():
    clear, noisy = scores(0.5, 0.6, 0.4, 0.4), scores(0.1, 0.2, 0.9, 0.1, noise=2.0)
    assert decide(CANDIDATES, [weigh_by_reliability([clear, noisy])], 0).chosen == 1
    sure = scores(0.1, 0.2, 0.9, 0.1, weight=2)
    assert decide(CANDIDATES, [weigh_by_reliability([clear, sure])], 0).chosen == 2


def test_the_claim_is_the_first_sources_with_an_interval_of_the_change():
    claim = decide(CANDIDATES, [AGREEMENT], 0, Limits(budget=0.5)).claim
    assert (claim.source, claim.before, claim.after) == ("encoder", 1.0, 0.96)
    assert claim.gain.low < -0.04 < claim.gain.high
    width = 2 * 1.96 * np.sqrt(2) * 0.001
    assert claim.gain.high - claim.gain.low == pytest.approx(width, rel=0.2)


@pytest.mark.parametrize(
    ("count", "lead", "stays"),
    [(16, -0.5, False), (16, -1.5, True), (64, 0.5, False), (64, -0.5, True), (256, 0.5, True)],
)
def test_labels_alone_may_stop_a_choice(count: int, lead: float, stays: bool):
    drawn = np.random.default_rng(1).normal(0, 1, (2, 4000)) / np.sqrt(2)
    values = np.array([0.0, lead])  # the difference has a standard error of 1
    check = LabelCheck(Scores(values, values[:, None] + drawn, "labels"), count)
    total = scores(0.0, 1.0)
    decision = decide_by_judge(CANDIDATES[:2], total, 0, None, lead=1.5, labels=check)
    assert (decision.chosen == 0) == stays
    assert decision.weak == (LABELS_DISAGREE if stays else "")
    assert decide_by_judge(CANDIDATES[:2], total, 0, None, lead=1.5).chosen == 1


def test_labels_weigh_more_the_more_there_are():
    assert [weight_of_labels(count) for count in (16, 64, 256)] == [1, 2, 4]
