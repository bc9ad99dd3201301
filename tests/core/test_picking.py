"""Choices among candidates that are equal, and among those that are not: how often one moves, and
what it promises."""

from __future__ import annotations

import numpy as np

from layerscope.core.candidates import ScoredCandidates
from layerscope.core.picking import pick

LAST = (0, 8)


def made(rng: np.random.Generator, truth: np.ndarray, error: float = 1.0) -> ScoredCandidates:
    """Scores with independent errors that share a part, and resamples that vary as the scores
    do."""
    noise = error * (rng.standard_normal(truth.shape) + rng.standard_normal())
    draws = error * (rng.standard_normal((*truth.shape, 200)) + rng.standard_normal((1, 1, 200)))
    return ScoredCandidates(truth + noise, (truth + noise)[..., None] + draws)


def simulate(truth: np.ndarray, trials: int) -> np.ndarray:
    """Of the choices that were made: how far the promise is from the truth, and whether the
    interval holds it."""
    rng, rows = np.random.default_rng(3), []
    for seed in range(trials):
        found = pick(made(rng, truth), np.full(truth.shape, True), lambda place: LAST, seed=seed)
        if found.moved:
            gain, true = found.gain(found.place, LAST), float(truth[found.place] - truth[LAST])
            rows.append((gain.value - true, gain.low <= true <= gain.high))
    return np.array(rows, dtype=float)


def test_equal_candidates_are_rarely_taken_and_nothing_is_promised() -> None:
    found = simulate(np.zeros((1, 9)), 300)
    assert len(found) / 300 < 0.09  # 5 %, and three standard errors
    assert abs(found[:, 0].mean()) < 2.5  # the winners look 3 to 4 points better than they are
    assert found[:, 1].mean() > 0.8


def test_a_gain_is_promised_as_it_is() -> None:
    truth = np.array([[0.0, 0, 1, 3, 4, 3, 1, 0, 0]])
    found = simulate(truth, 120)
    assert len(found) > 60
    assert abs(found[:, 0].mean()) < 4 * found[:, 0].std() / len(found) ** 0.5
    assert found[:, 1].mean() >= 0.87


def test_a_sure_choice_has_the_plain_gain_and_interval() -> None:
    truth = np.array([[0.0, 0, 0, 0, 90, 0, 0, 0, 0]])
    given = made(np.random.default_rng(0), truth)
    found = pick(given, np.full(truth.shape, True), lambda place: LAST)
    gain, plain = found.gain((0, 4), LAST), given.gain((0, 4), LAST)
    assert found.place == (0, 4)
    assert gain.value == plain.value
    assert abs(gain.low - plain.low) < 0.4
    assert abs(gain.high - plain.high) < 0.4
    assert found.risk((0, 4), LAST) < 1e-6


def test_the_parts_of_a_gain_add_up() -> None:
    truth = np.vstack([np.zeros(9), np.full(9, 8.0)])
    given = made(np.random.default_rng(1), truth)
    found = pick(given, np.full(truth.shape, True), lambda place: LAST, ((1, 8),))
    assert found.moved
    whole = found.gain(found.place, LAST).value
    assert (
        abs(found.gain(found.place, (1, 8)).value + found.gain((1, 8), LAST).value - whole) < 1e-9
    )


def test_what_is_asked_for_is_taken_and_judged_as_it_is() -> None:
    given = made(np.random.default_rng(2), np.zeros((1, 9)))
    only = np.zeros((1, 9), bool)
    only[0, 3] = True
    found = pick(given, only, lambda place: LAST, forced=True)
    assert found.place == (0, 3)
    assert found.gain((0, 3), LAST).value == float(given.score[0, 3] - given.score[LAST])
