"""Choices among candidates that are equal, and among those that are not: how often one moves, and
what it promises."""

from __future__ import annotations

import numpy as np

from layerscope.choose import Candidate, Decision, Limits, Scores, SplitScores, decide

LAST = 8


def made(rng: np.random.Generator, truth: np.ndarray, error: float = 1.0) -> Scores:
    """Scores with independent errors that share a part, and resamples that vary as the scores
    do."""
    noise = error * (rng.standard_normal(truth.shape) + rng.standard_normal())
    draws = error * (rng.standard_normal((len(truth), 200)) + rng.standard_normal((1, 200)))
    return Scores(truth + noise, (truth + noise)[:, None] + draws)


def pick(
    scores: Scores, others: tuple[int, ...] = (), only: int | None = None, seed: int = 0
) -> tuple[SplitScores, Decision]:
    """Choose one of all candidates, or the only one that may be chosen, whatever it gains."""
    places = np.arange(len(scores.values))
    open_to = np.full(len(places), True) if only is None else places == only
    split = SplitScores.of(scores, open_to, LAST, others, seed)
    candidates = [Candidate((), blocked="" if may else "not open") for may in open_to]
    limits = Limits(lead=split.lead if only is None else None)
    return split, decide(candidates, [scores], LAST, limits, split.claim, split.noise)


def simulate(truth: np.ndarray, trials: int) -> np.ndarray:
    """Of the choices that were made: how far the promise is from the truth, and whether the
    interval holds it."""
    rng, rows = np.random.default_rng(3), []
    for seed in range(trials):
        _, decision = pick(made(rng, truth), seed=seed)
        if decision.chosen != LAST:
            gain, true = decision.claim.gain, float(truth[decision.chosen] - truth[LAST])
            rows.append((gain.value - true, gain.low <= true <= gain.high))
    return np.array(rows, dtype=float)


def test_equal_candidates_are_rarely_taken_and_nothing_is_promised() -> None:
    found = simulate(np.zeros(9), 300)
    assert len(found) / 300 < 0.09  # 5 %, and three standard errors
    assert abs(found[:, 0].mean()) < 2.5  # the winners look 3 to 4 points better than they are
    assert found[:, 1].mean() > 0.8


def test_a_gain_is_promised_as_it_is() -> None:
    truth = np.array([0.0, 0, 1, 3, 4, 3, 1, 0, 0])
    found = simulate(truth, 120)
    assert len(found) > 60
    assert abs(found[:, 0].mean()) < 4 * found[:, 0].std() / len(found) ** 0.5
    assert found[:, 1].mean() >= 0.87


def test_a_sure_choice_has_the_plain_gain_and_interval() -> None:
    truth = np.array([0.0, 0, 0, 0, 90, 0, 0, 0, 0])
    scores = made(np.random.default_rng(0), truth)
    _, decision = pick(scores)
    gain, plain = decision.claim.gain, scores.gain(4, LAST)
    assert decision.chosen == 4
    assert gain.value == plain.value
    assert abs(gain.low - plain.low) < 0.4
    assert abs(gain.high - plain.high) < 0.4
    assert decision.claim.risk < 1e-6


def test_the_parts_of_a_gain_add_up() -> None:
    truth = np.concatenate([np.zeros(9), np.full(9, 8.0)])
    split, decision = pick(made(np.random.default_rng(1), truth), (17,))
    assert decision.chosen != LAST
    whole = decision.claim.gain.value
    by_layer = split.claim(decision.rule, decision.chosen, 17).gain.value
    by_readout = split.claim(decision.rule, decision.chosen, LAST, 17).gain.value
    assert abs(by_layer + by_readout - whole) < 1e-9


def test_what_is_asked_for_is_taken_and_judged_as_it_is() -> None:
    scores = made(np.random.default_rng(2), np.zeros(9))
    _, decision = pick(scores, only=3)
    assert decision.chosen == 3
    assert decision.claim.gain.value == float(scores.values[3] - scores.values[LAST])
