"""Measures against scipy and against loops, what chance gives for smooth curves, and intervals."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from layerscope_paper import atlas
from layerscope_paper.correlation import maths


def against_chance(
    measure: str, observed: float, xs: np.ndarray, curves: dict[str, np.ndarray]
) -> list[maths.Chance]:
    """An observed value beside the surrogates of the other series."""
    return maths.compare_with(
        measure,
        observed,
        {kind: maths.null_values(measure, xs, drawn) for kind, drawn in curves.items()},
    )


def dcor_by_loops(x: list[float], y: list[float], corrected: bool = False) -> float:
    """Distance correlation as Székely, Rizzo & Bakirov (2007) and Székely & Rizzo (2013) write it,
    element by element."""
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
                    out[i][j] = (
                        d[i][j] - (rows[i] + rows[j]) / (n - 2) + total / ((n - 1) * (n - 2))
                    )
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
    for model, metrics in (
        ("Pythia-410m", ["dime", "curvature", "infonce"]),
        ("bert-base", ["lidar", "entropy_dataset"]),
    ):
        scores = atlas.select_scores(model)
        for metric in metrics:
            both = scores.merge(atlas.metric_values(model, "mteb", metric), on=["task", "layer"])
            for task in ("STS12", "Banking77Classification", "STS17", "EmotionClassification"):
                own = both[both["task"] == task].sort_values("layer")
                pairs.append(
                    (f"{model} {metric} {task}", own["value"].to_numpy(), own["score"].to_numpy())
                )
            means = both.groupby("layer")[["value", "score"]].mean()
            pairs.append(
                (f"{model} {metric} mean", means["value"].to_numpy(), means["score"].to_numpy())
            )
    return pairs


@pytest.mark.parametrize(
    ("x", "y"), [pytest.param(*curves, id=name) for name, *curves in atlas_pairs()]
)
def test_on_the_atlas_equal_to_scipy_and_to_loops(x: np.ndarray, y: np.ndarray) -> None:
    assert maths.association("spearman", x, y) == pytest.approx(
        stats.spearmanr(x, y).statistic, abs=1e-10
    )
    assert maths.association("kendall", x, y) == pytest.approx(
        stats.kendalltau(x, y).statistic, abs=1e-10
    )
    assert maths.association("dcor", x, y) == pytest.approx(
        dcor_by_loops(x.tolist(), y.tolist()), abs=1e-10
    )
    corrected = dcor_by_loops(x.tolist(), y.tolist(), corrected=True)
    assert maths.association("dcor_corrected", x, y) == pytest.approx(corrected, abs=1e-10)


series = st.lists(st.integers(-4, 4), min_size=6, max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_ties_and_invariances(data: st.DataObject) -> None:
    left = data.draw(series)
    x = np.array(left, float)
    y = np.array(
        data.draw(st.lists(st.integers(-4, 4), min_size=len(left), max_size=len(left))), float
    )
    if maths.undefined_because(x, y):
        return
    assert maths.association("spearman", x, y) == pytest.approx(
        stats.spearmanr(x, y).statistic, abs=1e-10
    )
    assert maths.association("kendall", x, y) == pytest.approx(
        stats.kendalltau(x, y).statistic, abs=1e-10
    )
    value = maths.association("dcor", x, y)
    assert 0 <= value <= 1 + 1e-12
    assert maths.association("dcor", y, x) == pytest.approx(value, abs=1e-7)
    # shifts, scales, reflections; the root of a sum that is zero but for rounding
    assert maths.association("dcor", 3 - 7 * x, y) == pytest.approx(value, abs=1e-7)
    assert maths.association("dcor", x, 2 * x + 1) == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize("measure", list(maths.MEASURES))
def test_the_null_is_the_measure_of_the_surrogates(measure: str) -> None:
    rng = np.random.default_rng(3)
    xs, y = rng.normal(size=(3, 11)), rng.normal(size=11)
    for curves in maths.surrogate_curves(y, 40, seed=1).values():
        null = maths.null_values(measure, xs, curves)
        for k, x in enumerate(xs):
            np.testing.assert_allclose(
                null[k], [maths.association(measure, x, curve) for curve in curves], atol=1e-12
            )


@pytest.mark.parametrize("n", [12, 13])
def test_surrogates_keep_their_properties(n: int) -> None:
    """Both keep the bend and the last layer; one the spectrum about the bend, one the steps between
    neighbors."""
    y = np.random.default_rng(0).normal(size=n).cumsum()
    curves = maths.surrogate_curves(y, 50, seed=4)
    shape = maths.shape_of(y[None, :-1])[0]
    spectrum = np.abs(np.fft.rfft(curves["random phase"][:, :-1] - shape))
    wanted = np.abs(np.fft.rfft(y[:-1] - shape))[1:]
    np.testing.assert_allclose(
        spectrum[:, 1:], np.broadcast_to(wanted, spectrum[:, 1:].shape), atol=1e-9
    )
    steps = np.diff(curves["permuted increments"][:, :-1] - shape)
    np.testing.assert_allclose(
        np.sort(steps), np.broadcast_to(np.sort(np.diff(y[:-1] - shape)), steps.shape), atol=1e-9
    )
    for drawn in curves.values():
        np.testing.assert_allclose(drawn[:, -1], y[-1])
    again = maths.surrogate_curves(y, 50, seed=4)
    for kind, drawn in curves.items():
        np.testing.assert_array_equal(drawn, again[kind])
        assert not np.allclose(drawn[0], drawn[1])


def test_independent_data_of_13_points() -> None:
    """13 points of noise give a distance correlation near 0.45; the corrected one is 0 on
    average."""
    rng = np.random.default_rng(0)
    plain = [
        maths.association("dcor", rng.normal(size=13), rng.normal(size=13)) for _ in range(400)
    ]
    corrected = [
        maths.association("dcor_corrected", rng.normal(size=13), rng.normal(size=13))
        for _ in range(400)
    ]
    assert np.mean(plain) == pytest.approx(0.45, abs=0.02)
    assert np.mean(corrected) == pytest.approx(0.0, abs=0.02)


def _smooth(n: int, scale: float) -> Callable[[np.random.Generator], np.ndarray]:
    """Gaussian curves whose neighbors within `scale` layers are alike."""
    place = np.arange(n)
    covariance = np.exp(-0.5 * ((place[:, None] - place) / scale) ** 2) + 1e-6 * np.eye(n)
    factor = np.linalg.cholesky(covariance)
    return lambda rng: factor @ rng.normal(size=n)


def _valley(n: int, rng: np.random.Generator) -> np.ndarray:
    """A dip somewhere in the middle, a jump at the last layer, and smooth noise: the shape that
    curves of one network share."""
    depth = np.linspace(0, 1, n)
    dip = np.exp(-0.5 * ((depth - rng.uniform(0.4, 0.6)) / rng.uniform(0.15, 0.25)) ** 2)
    return (
        -rng.uniform(1, 3) * dip + 0.4 * _smooth(n, n / 8)(rng) + rng.uniform(1, 3) * (depth == 1)
    )


CURVES: dict[str, Callable[[int], Callable[[np.random.Generator], np.ndarray]]] = {
    "walks": lambda n: lambda rng: rng.normal(size=n).cumsum(),
    "drifting walks": lambda n: (
        lambda rng: (rng.normal(size=n) + 0.5 * rng.choice([-1, 1])).cumsum()
    ),
    "smooth": lambda n: _smooth(n, n / 8),
    "smoother": lambda n: _smooth(n, n / 4),
    "valleys and a last layer apart": lambda n: lambda rng: _valley(n, rng),
}
TRIALS = 300


def _p(measure: str, x: np.ndarray, y: np.ndarray, seed: int, count: int = 99) -> float:
    curves = maths.surrogate_curves(y, count, seed)
    return against_chance(measure, maths.association(measure, x, y), x[None], curves)[0].p


@pytest.mark.parametrize("kind", list(CURVES))
@pytest.mark.parametrize(
    ("measure", "n"),
    [("spearman", 13), ("dcor", 25), pytest.param("spearman", 25, marks=pytest.mark.slow)],
)
def test_unrelated_smooth_curves_are_called_related_one_time_in_twenty(
    measure: str, n: int, kind: str
) -> None:
    """Shuffling the layers, which was the null before, calls 26 to 94 % of these pairs related."""
    rng, draw = np.random.default_rng(7), CURVES[kind](n)
    beyond = sum(_p(measure, draw(rng), draw(rng), trial) <= 0.05 for trial in range(TRIALS))
    assert beyond <= 0.08 * TRIALS, beyond / TRIALS


def _cycle(n: int) -> Callable[[np.random.Generator], np.ndarray]:
    """Gaussian curves that end where they began, of slow waves above all."""
    waves = np.arange(1, n // 2)
    angle = 2 * np.pi * np.arange(n)[:, None] * waves / n
    factor = np.concatenate([np.cos(angle), np.sin(angle)], axis=1) / np.tile(waves, 2) ** 1.5
    return lambda rng: factor @ rng.normal(size=factor.shape[1])


@pytest.mark.parametrize("measure", ["spearman", "dcor"])
@pytest.mark.parametrize(
    ("null", "draw"),
    [("random phase", _cycle(25)), ("permuted increments", CURVES["walks"](25))],
    ids=["cycles", "walks"],
)
def test_each_null_holds_its_level_for_its_own_kind_of_curves(
    null: str, draw: Callable[..., np.ndarray], measure: str
) -> None:
    """Neither does for the other's, which is why the larger p-value counts. Keeping the bend makes
    them careful."""
    rng, beyond = np.random.default_rng(11), 0
    for trial in range(250):
        x, y = draw(rng), draw(rng)
        values = maths.null_values(measure, x[None], maths.surrogate_curves(y, 99, trial)[null])[0]
        strength = maths.MEASURES[measure].strength
        beyond += (
            1 + (strength(values) >= strength(np.array(maths.association(measure, x, y)))).sum()
        ) / 100 <= 0.05
    assert 0 < beyond / 250 <= 0.07, beyond / 250


@pytest.mark.parametrize("kind", ["walks", "smooth"])
@pytest.mark.parametrize("measure", ["spearman", "dcor"])
def test_related_curves_are_found(measure: str, kind: str) -> None:
    rng, draw = np.random.default_rng(8), CURVES[kind](25)
    beyond = 0
    for trial in range(60):
        x = draw(rng)
        y = -x + 0.3 * draw(rng)
        beyond += _p(measure, x, y, trial) <= 0.05
    assert beyond >= 0.6 * 60, beyond / 60


def test_dependence_that_is_not_monotone() -> None:
    x = np.random.default_rng(2).normal(size=25)
    p = {measure: _p(measure, x, x**2, 0, 999) for measure in maths.MEASURES}
    assert p["dcor"] < 0.05
    assert p["spearman"] > 0.05


def test_a_straight_line_is_no_evidence() -> None:
    """Nothing about a line tells it from another line: every surrogate of it is that line."""
    chance = against_chance(
        "spearman", 1.0, np.arange(12.0)[None], maths.surrogate_curves(np.arange(12.0), 99)
    )[0]
    assert (chance.p, chance.limit) == (1.0, pytest.approx(1.0))


def test_the_larger_p_value_counts() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=20).cumsum(), rng.normal(size=20).cumsum()
    chance = against_chance(
        "spearman", maths.association("spearman", x, y), x[None], maths.surrogate_curves(y, 199)
    )[0]
    assert set(chance.p_by_null) == {"random phase", "permuted increments"}
    assert chance.p == max(chance.p_by_null.values())
    assert 0 < chance.mean < chance.limit <= 1


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
    assert (
        maths.bootstrap_interval(
            "spearman", x[:5].copy() + np.array([0, 0, 0, 0, 1.0]), np.arange(5.0), draws=200
        )
        is not None
    )
    y = np.array([1.0] + [0.0] * 11)
    assert maths.bootstrap_interval("spearman", x, y, draws=300) is None


def test_undefined_series_are_named() -> None:
    steady, moving = np.full(6, 0.1) + 1e-17, np.arange(6.0)
    assert maths.undefined_because(moving[:3], moving[:3]) == "3 points, at least 4 are needed"
    assert maths.undefined_because(steady, moving) == "the metric is constant"
    assert maths.undefined_because(moving, steady) == "the scores are constant"
    assert maths.undefined_because(moving, moving) is None


def test_related_curves_have_the_stated_correlation() -> None:
    layers = np.arange(25.0)
    scores = np.sin(layers / 8)
    given = np.stack(
        [scores + 0.3 * np.cos(layers / k) for k in (1, 2, 3)]
    )  # curves that follow the scores themselves
    for curve in maths.related_curves(given, scores):
        assert np.corrcoef(curve, scores)[0, 1] == pytest.approx(maths.RELATED)
