"""Scored candidates: the best, gains on the same resamples, and the one rule for ties."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from layerscope.core.scores import DRAWS, Scores


def sampled(truth: np.ndarray, n: int, shared: float, seed: int) -> Scores:
    """Means of n items per candidate, which share a part of each item's error; and those means on
    resampled items."""
    rng = np.random.default_rng(seed)
    items = truth[:, None] + shared * rng.normal(size=n) + rng.normal(size=(len(truth), n))
    return Scores(items.mean(1), items @ weights(n))


@cache
def weights(n: int) -> np.ndarray:
    """How often each of n items is in each draw. The items are new in every sample, so that the
    draws can be the same."""
    return np.random.default_rng(n).multinomial(n, np.full(n, 1 / n), size=DRAWS).T / n


@pytest.mark.parametrize("shared", [0.0, 3.0])
@pytest.mark.parametrize("truth", [np.zeros(13), np.array([*np.linspace(-3, 0, 12), 0.0])])
def test_the_truly_best_is_among_the_tied_in_95_of_100_samples(
    truth: np.ndarray, shared: float
) -> None:
    """Whichever of the truly best is named beforehand: it is ruled out in at most about one of
    twenty samples."""
    held = sum(bool(sampled(truth, 200, shared, seed).tied()[-1]) for seed in range(300))
    assert held >= 276  # 285 expected; over 600 seeds it was 94.8 %


def test_scores_without_a_defined_draw_have_no_bounds() -> None:
    scored = Scores(np.array([0.3, 0.5]), np.full((2, DRAWS), np.nan))
    assert np.isnan(scored.interval()).all()
    assert np.isnan(scored.gains(1)[1:]).all()


def test_what_is_clearly_behind_is_not_tied() -> None:
    scored = sampled(np.array([0.0, 1.0, 1.0, 0.5]), 400, 0.0, 0)
    assert scored.tied().tolist() == [False, True, True, False]


def test_more_candidates_need_a_larger_lead() -> None:
    """All comparisons at once: one candidate 2.2 standard errors behind is told from the best
    alone, but not among fifty."""
    rng = np.random.default_rng(0)
    score = np.array([2.2 * np.sqrt(2), 0.0])
    alone = Scores(score, score[:, None] + rng.normal(size=(2, DRAWS)))
    assert alone.tied().tolist() == [True, False]
    many = np.concatenate([score, np.full(48, -100.0)])
    among = Scores(many, many[:, None] + rng.normal(size=(50, DRAWS)))
    assert among.tied()[:2].tolist() == [True, True]
    assert among.tied(np.arange(50) < 2).tolist() == [
        True,
        False,
        *[False] * 48,
    ]  # only what is allowed counts


def test_undefined_candidates_and_missing_draws() -> None:
    scored = Scores(np.array([np.nan, 0.2, 0.5, 0.4]))
    assert scored.best() == 2
    assert scored.best(np.array([True, True, False, True])) == 3
    assert scored.tied().tolist() == [False, False, True, False]
    assert scored.gain(2, 1).value == pytest.approx(0.3)
    assert np.isnan(scored.interval()[0]).all()
    assert not Scores(np.full(3, np.nan)).tied().any()
    equal = Scores(np.ones(3), np.ones((3, DRAWS)))  # nothing moves: equals tie
    assert equal.tied().all()


def test_gains_are_differences_on_the_same_draws() -> None:
    scored = sampled(np.array([0.0, 0.5, 0.5]), 300, 3.0, 1)
    gain, low, high = scored.gains(0)
    assert gain[0] == low[0] == high[0] == 0
    one = scored.gain(1, 0)
    assert (one.value, one.low, one.high) == pytest.approx((gain[1], low[1], high[1]))
    assert (
        high[1] - low[1] < scored.interval()[1][1] - scored.interval()[0][1]
    )  # the shared error is gone


def test_the_gain_of_a_pick_holds_for_whichever_is_picked() -> None:
    """Of nine equal candidates the best looks better than the first; its interval leaves 0 out in 5
    % of cases, not in 40."""
    rng, plain, of_pick = np.random.default_rng(0), 0, 0
    for _ in range(200):
        score = rng.standard_normal(9)
        scored = Scores(score, score[:, None] + rng.standard_normal((9, 200)))
        best = scored.best()
        plain += scored.gain(best, 0).low > 0
        of_pick += scored.gain_of_pick(best, 0, np.full(9, True)).low > 0
    assert of_pick <= 20 < plain
