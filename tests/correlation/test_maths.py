"""Measures against scipy and against loops, the permutation null, intervals and adjusted p-values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from layerscope import atlas
from layerscope.correlation import maths


def dcor_by_loops(x: list[float], y: list[float], corrected: bool = False) -> float:
    """Distance correlation as Székely, Rizzo & Bakirov (2007) and Székely & Rizzo (2013) write it, element by element."""
    n = len(x)

    def centered(v: list[float]) -> list[list[float]]:
        d = [[abs(a - b) for b in v] for a in v]
        rows = [math.fsum(row) for row in d]
        total = math.fsum(rows)
        out = [[0.0] * n for _ in v]
        for i in range(n):
            for j in range(n):
                if not corrected:
                    out[i][j] = d[i][j] - rows[i] / n - rows[j] / n + total / n**2
                elif i != j:
                    out[i][j] = d[i][j] - (rows[i] + rows[j]) / (n - 2) + total / ((n - 1) * (n - 2))
        return out

    a, b = centered(x), centered(y)

    def product(p: list[list[float]], q: list[list[float]]) -> float:
        scale = n * (n - 3) if corrected else n**2
        return math.fsum(p[i][j] * q[i][j] for i in range(n) for j in range(n)) / scale

    ratio = product(a, b) / math.sqrt(product(a, a) * product(b, b))
    return ratio if corrected else math.sqrt(max(0.0, ratio))


def atlas_pairs() -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Published metrics and scores of single tasks and of layer means, of two models."""
    pairs = []
    for model, metrics in (("Pythia-410m", ["dime", "curvature", "infonce"]), ("bert-base", ["lidar", "entropy_dataset"])):
        scores = atlas.select_scores(model)
        for metric in metrics:
            both = scores.merge(atlas.metric_values(model, "mteb", metric), on=["task", "layer"])
            for task in ("STS12", "Banking77Classification", "STS17", "EmotionClassification"):
                own = both[both["task"] == task].sort_values("layer")
                pairs.append((f"{model} {metric} {task}", own["value"].to_numpy(), own["score"].to_numpy()))
            means = both.groupby("layer")[["value", "score"]].mean()
            pairs.append((f"{model} {metric} mean", means["value"].to_numpy(), means["score"].to_numpy()))
    return pairs


@pytest.mark.parametrize(("x", "y"), [pair[1:] for pair in atlas_pairs()], ids=[pair[0] for pair in atlas_pairs()])
def test_on_the_atlas_equal_to_scipy_and_to_loops(x: np.ndarray, y: np.ndarray) -> None:
    assert maths.association("spearman", x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-10)
    assert maths.association("kendall", x, y) == pytest.approx(stats.kendalltau(x, y).statistic, abs=1e-10)
    assert maths.association("dcor", x, y) == pytest.approx(dcor_by_loops(x.tolist(), y.tolist()), abs=1e-10)
    corrected = dcor_by_loops(x.tolist(), y.tolist(), corrected=True)
    assert maths.association("dcor_corrected", x, y) == pytest.approx(corrected, abs=1e-10)


series = st.lists(st.integers(-4, 4), min_size=6, max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_ties_and_invariances(data: st.DataObject) -> None:
    left = data.draw(series)
    x = np.array(left, float)
    y = np.array(data.draw(st.lists(st.integers(-4, 4), min_size=len(left), max_size=len(left))), float)
    if maths.undefined_because(x, y):
        return
    assert maths.association("spearman", x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-10)
    assert maths.association("kendall", x, y) == pytest.approx(stats.kendalltau(x, y).statistic, abs=1e-10)
    value = maths.association("dcor", x, y)
    assert 0 <= value <= 1 + 1e-12
    assert maths.association("dcor", y, x) == pytest.approx(value, abs=1e-12)
    assert maths.association("dcor", 3 - 7 * x, y) == pytest.approx(value, abs=1e-10)  # shifts, scales, reflections
    assert maths.association("dcor", x, 2 * x + 1) == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize("measure", list(maths.MEASURES))
def test_the_null_is_the_measure_of_reordered_scores(measure: str) -> None:
    rng = np.random.default_rng(3)
    xs, y = rng.normal(size=(3, 11)), rng.normal(size=11)
    orders = maths.draw_permutations(11, 40, seed=1)
    null = maths.null_values(measure, xs, y, orders)
    for k, x in enumerate(xs):
        direct = [maths.association(measure, x, y[order]) for order in orders]
        np.testing.assert_allclose(null[k], direct, atol=1e-12)


def test_independent_data_of_13_points() -> None:
    """13 points of noise give a distance correlation near 0.45; the corrected one is 0 on average."""
    rng = np.random.default_rng(0)
    plain = [maths.association("dcor", rng.normal(size=13), rng.normal(size=13)) for _ in range(400)]
    assert np.mean(plain) == pytest.approx(0.45, abs=0.02)
    x, y = rng.normal(size=(1, 13)), rng.normal(size=13)
    orders = maths.draw_permutations(13, 4000, seed=0)
    assert maths.null_values("dcor", x, y, orders).mean() == pytest.approx(0.45, abs=0.03)
    assert abs(maths.null_values("dcor_corrected", x, y, orders).mean()) < 0.01


@pytest.mark.parametrize("measure", list(maths.MEASURES))
def test_p_values_are_uniform_on_independent_data(measure: str) -> None:
    rng = np.random.default_rng(11)
    found = []
    for trial in range(300):
        x, y = rng.normal(size=13), rng.exponential(size=13)
        null = maths.null_values(measure, x[None], y, maths.draw_permutations(13, 199, seed=trial))[0]
        found.append(maths.p_value(measure, maths.association(measure, x, y), null))
    assert stats.kstest(found, "uniform").pvalue > 0.01
    assert np.mean(np.array(found) <= 0.05) == pytest.approx(0.05, abs=0.035)


def test_p_values_find_dependence_that_is_not_monotone() -> None:
    x = np.linspace(-1, 1, 25)
    orders = maths.draw_permutations(25, 999, seed=0)
    p = {
        m: maths.p_value(m, maths.association(m, x, x**2), maths.null_values(m, x[None], x**2, orders)[0]) for m in maths.MEASURES
    }
    assert p["dcor"] < 0.05
    assert p["spearman"] > 0.5
    # a perfect relation: only the observed order (and its mirror) reach it
    assert maths.p_value("spearman", 1.0, maths.null_values("spearman", x[None], x, orders)[0]) == 1 / 1000


@pytest.mark.parametrize("measure", list(maths.MEASURES))
def test_intervals_hold_the_value_and_are_seeded(measure: str) -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=25)
    y = x + 0.5 * rng.normal(size=25)
    first = maths.bootstrap_interval(measure, x, y, draws=400, seed=2)
    assert first == maths.bootstrap_interval(measure, x, y, draws=400, seed=2)
    assert first is not None
    low, high = first
    assert low <= maths.association(measure, x, y) <= high
    assert 0 < high - low < 0.8


def test_an_interval_of_mostly_undefined_resamples_is_none() -> None:
    x = np.array([0.0] * 11 + [1.0])  # a resample without the last point is constant
    assert maths.bootstrap_interval("spearman", x[:5].copy() + np.array([0, 0, 0, 0, 1.0]), np.arange(5.0), draws=200) is not None
    y = np.array([1.0] + [0.0] * 11)
    assert maths.bootstrap_interval("spearman", x, y, draws=300) is None


def test_undefined_series_are_named() -> None:
    steady, moving = np.full(6, 0.1) + 1e-17, np.arange(6.0)
    assert maths.undefined_because(moving[:3], moving[:3]) == "3 points, at least 4 are needed"
    assert maths.undefined_because(steady, moving) == "the metric is constant"
    assert maths.undefined_because(moving, steady) == "the scores are constant"
    assert maths.undefined_because(moving, moving) is None
