"""Statistics against scipy and scikit-learn, and against the formulas that several modules once had
of their own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import average_precision_score

from layerscope.core import statistics
from layerscope.core.statistics import Interval


def test_ranks_of_an_undefined_value_are_undefined() -> None:
    found = statistics.mean_ranks(np.array([[1.0, math.nan, 3.0], [3.0, 1.0, 2.0]]))
    assert np.isnan(found[0]).all()
    assert found[1].tolist() == [3.0, 1.0, 2.0]


@pytest.mark.parametrize("decimals", [0, 9])
def test_spearman_is_scipys_in_every_form(decimals: int) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(4, 30)).round(decimals), rng.normal(size=30).round(decimals)
    wanted = [stats.spearmanr(row, y).statistic for row in x]
    np.testing.assert_allclose(
        statistics.spearman(x, np.broadcast_to(y, x.shape)), wanted, atol=1e-12
    )
    chosen = statistics.bootstrap_rows(30, 6, 5)
    weights = np.stack([np.bincount(row, minlength=30) for row in chosen]).astype(float)
    drawn = [[stats.spearmanr(row[c], y[c]).statistic for c in chosen] for row in x]
    np.testing.assert_allclose(statistics.spearman(x, y, weights), drawn, atol=1e-12)


def test_spearman_of_a_constant_is_undefined() -> None:
    assert math.isnan(float(statistics.spearman(np.ones(4), np.arange(4.0))))
    weights = np.array(
        [[1.0, 1, 1, 1], [2, 1, 0, 1], [4, 0, 0, 0]]
    )  # the last draws one item alone
    found = statistics.spearman(np.array([np.ones(4), np.arange(4.0)]), np.arange(4.0), weights)
    np.testing.assert_allclose(found, [[math.nan] * 3, [1, 1, math.nan]])


@pytest.mark.parametrize("decimals", [0, 9])
def test_average_precision_is_scikit_learns(decimals: int) -> None:
    rng = np.random.default_rng(3)
    scores, relevant = rng.normal(size=40).round(decimals), rng.integers(0, 2, 40).astype(float)
    wanted = average_precision_score(relevant, scores)
    assert float(statistics.average_precision(scores, relevant)) == pytest.approx(wanted, abs=1e-12)
    chosen = statistics.bootstrap_rows(40, 6, 5)
    weights = np.stack([np.bincount(row, minlength=40) for row in chosen]).astype(float)
    rows = np.stack([scores, scores[::-1], np.full(40, math.nan)])
    drawn = [[average_precision_score(relevant[c], row[c]) for c in chosen] for row in rows[:2]]
    np.testing.assert_allclose(
        statistics.average_precision(rows, relevant, weights), [*drawn, [math.nan] * 6], atol=1e-12
    )
    assert math.isnan(float(statistics.average_precision(scores, np.zeros(40))))


def test_student_needs_a_degree_of_freedom() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        statistics.student_cdf(0.0, 0)


def test_resamples_are_those_of_earlier_versions() -> None:
    """Stored intervals stay what they were: the same seeds draw the same items, at once or one
    resample at a time."""
    rng = np.random.default_rng([7, 33])
    one_by_one = [rng.integers(0, 33, 33) for _ in range(50)]
    np.testing.assert_array_equal(statistics.bootstrap_rows(33, 50, [7, 33]), one_by_one)
    groups = np.repeat([0, 1], [5, 8])
    weights = statistics.bootstrap_weights(13, 20, [0, 13, 20], groups)
    assert (weights[:, :5].sum(1) == 5).all()
    assert (weights[:, 5:].sum(1) == 8).all()
    plain = np.random.default_rng([0, 13, 20]).multinomial(13, np.full(13, 1 / 13), 20)
    np.testing.assert_array_equal(statistics.bootstrap_weights(13, 20, [0, 13, 20]), plain)


def test_the_jackknife_of_means_is_their_standard_error() -> None:
    values = np.random.default_rng(0).normal(size=20)
    left_out = [float(np.delete(values, i).mean()) for i in range(20)]
    assert statistics.jackknife_error(left_out) == pytest.approx(values.std(ddof=1) / math.sqrt(20))
    assert math.isnan(statistics.jackknife_error([1.0, 2.0]))
    assert math.isnan(statistics.jackknife_error([1.0, 2.0, math.nan]))


def test_an_interval_knows_its_sign_and_its_unit() -> None:
    assert [
        Interval(1, 0.5, 2).sign,
        Interval(-1, -2, -0.5).sign,
        Interval(1, -1, 3).sign,
        Interval(1).sign,
    ] == [1, -1, 0, 0]
    assert Interval(0.5, 0.25, 0.75, 9).scaled(100) == Interval(50, 25, 75, 9)
    assert Interval(0.5, 0.25, 0.75).scaled(-1) == Interval(-0.5, -0.75, -0.25)


def test_an_interval_in_words() -> None:
    one = Interval(1.5, -0.25, 3.0)
    assert str(one) == "+1.50 (-0.25 to +3.00)"
    assert one.format(1, signed=False) == "1.5 (-0.2 to 3.0)"
    assert str(Interval(2.0, n=1)) == "+2.00 (no interval: 1 item)"
