"""Statistics against scipy and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import average_precision_score

from layerscope.core import statistics
from layerscope.core.statistics import Interval


def resamples(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Items that are drawn, and how often each is."""
    rows = statistics.bootstrap_rows(count, 6, 5)
    return rows, np.stack([np.bincount(row, minlength=count) for row in rows]).astype(float)


def test_ranks_of_an_undefined_value_are_undefined() -> None:
    ranks = statistics.mean_ranks(np.array([[1.0, math.nan, 3.0], [3.0, 1.0, 2.0]]))
    assert np.isnan(ranks[0]).all()
    assert ranks[1].tolist() == [3.0, 1.0, 2.0]


@pytest.mark.parametrize("decimals", [0, 9])
def test_spearman_is_scipys_in_every_form(decimals: int) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(4, 30)).round(decimals), rng.normal(size=30).round(decimals)
    expected = [stats.spearmanr(row, y).statistic for row in x]
    correlations = statistics.spearman(x, np.broadcast_to(y, x.shape))
    np.testing.assert_allclose(correlations, expected, atol=1e-12)
    rows, weights = resamples(30)
    expected = [[stats.spearmanr(row[drawn], y[drawn]).statistic for drawn in rows] for row in x]
    np.testing.assert_allclose(statistics.spearman(x, y, weights), expected, atol=1e-12)


def test_spearman_of_a_constant_is_undefined() -> None:
    assert math.isnan(float(statistics.spearman(np.ones(4), np.arange(4.0))))
    # the last draws one item alone
    weights = np.array([[1.0, 1, 1, 1], [2, 1, 0, 1], [4, 0, 0, 0]])
    x = np.array([np.ones(4), np.arange(4.0)])
    correlations = statistics.spearman(x, np.arange(4.0), weights)
    np.testing.assert_allclose(correlations, [[math.nan] * 3, [1, 1, math.nan]])


@pytest.mark.parametrize("decimals", [0, 9])
def test_average_precision_is_scikit_learns(decimals: int) -> None:
    rng = np.random.default_rng(3)
    scores, relevant = rng.normal(size=40).round(decimals), rng.integers(0, 2, 40).astype(float)
    expected = average_precision_score(relevant, scores)
    precision = float(statistics.average_precision(scores, relevant))
    assert precision == pytest.approx(expected, abs=1e-12)
    rows, weights = resamples(40)
    both = np.stack([scores, scores[::-1], np.full(40, math.nan)])
    drawn = [[average_precision_score(relevant[r], row[r]) for r in rows] for row in both[:2]]
    precisions = statistics.average_precision(both, relevant, weights)
    np.testing.assert_allclose(precisions, [*drawn, [math.nan] * 6], atol=1e-12)
    assert math.isnan(float(statistics.average_precision(scores, np.zeros(40))))


def test_resamples_are_seeded_and_keep_the_sizes_of_groups() -> None:
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


def test_an_interval_knows_its_sign_its_unit_and_its_words() -> None:
    bounds = [(0.5, 2), (-2, -0.5), (-1, 3), (math.nan, math.nan)]
    assert [Interval(1, *ends).sign for ends in bounds] == [1, -1, 0, 0]
    assert Interval(0.5, 0.25, 0.75, 9).scaled(100) == Interval(50, 25, 75, 9)
    assert Interval(0.5, 0.25, 0.75).scaled(-1) == Interval(-0.5, -0.75, -0.25)
    interval = Interval(1.5, -0.25, 3.0)
    assert str(interval) == "+1.50 (-0.25 to +3.00)"
    assert interval.format(1, signed=False) == "1.5 (-0.2 to 3.0)"
    assert str(Interval(2.0, n=1)) == "+2.00 (no interval: 1 item)"
