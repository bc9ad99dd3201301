"""Numbers over prompts: known answers."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from layerscope.core.statistics import LEAST_SHARE
from layerscope.profiling import Profile
from layerscope_paper.studies.shared.numbers import (
    mean_of,
    percentile_interval,
    student_interval,
)
from layerscope_paper.studies.shared.profiles import INVARIANCE, at_depths, dip_of, invariance


def test_a_dip_by_hand() -> None:
    rng = np.random.default_rng(0)
    curve = np.array([4.0, 5.0, 2.0, 1.0, 3.0, 4.5])
    values = curve + 0.1 * rng.standard_normal((200, 6))
    dip = dip_of(values, seed=0)
    mean = values.mean(axis=0)
    assert dip.place == 3
    assert dip.shoulder == pytest.approx(mean[5])  # the lower of 5.0 and 4.5
    assert dip.depth.value == pytest.approx(mean[5] - mean[3])
    assert dip.depth.low - 0.02 < 3.5 < dip.depth.high
    half = 1.96 * (values[:, 5] - values[:, 3]).std(ddof=1) / math.sqrt(200)
    assert dip.depth.high - dip.depth.low == pytest.approx(2 * half, rel=0.15)
    assert dip.is_valley


@pytest.mark.parametrize(
    "curve", [[1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0], [1.0, 3.0, 1.0, 0.5]]
)
def test_a_curve_without_a_dip(curve: list[float]) -> None:
    dip = dip_of(np.tile(curve, (5, 1)), seed=0)
    assert dip.depth.value == 0
    assert not dip.is_valley


def test_a_shallow_or_unsure_dip_is_no_valley() -> None:
    rng = np.random.default_rng(1)
    shallow = np.tile([4.0, 3.8, 4.0], (50, 1))
    assert dip_of(shallow, 0).depth.value == pytest.approx(0.2)
    assert not dip_of(shallow, 0).is_valley
    unsure = np.array([4.0, 3.0, 4.0]) + np.array([0.0, 1.0, 0.0]) * 8 * rng.standard_normal(
        (12, 1)
    )
    assert not dip_of(unsure, 0).is_valley
    assert not dip_of(np.array([[4.0, 1.0, 4.0]]), 0).is_valley  # one prompt: no interval


def test_prompts_without_a_value_are_left_out() -> None:
    values = np.array([[4.0, 1.0, 4.0], [math.nan, 1.0, 4.0], [5.0, 1.0, 5.0]])
    dip = dip_of(values, 0)
    assert dip.depth.n == 2
    assert dip.depth.value == pytest.approx(3.5)
    assert mean_of(np.array([1.0, math.nan, 3.0]), 0).value == 2
    assert mean_of(np.array([1.0, math.nan, 3.0]), 0).n == 2
    assert math.isnan(dip_of(np.full((3, 4), math.nan), 0).depth.value)


@given(arrays(float, (3, 5), elements=st.floats(-9, 9)))
def test_the_same_depths_give_the_same_values(values: np.ndarray) -> None:
    depths = np.arange(5) / 4
    assert (at_depths(values, depths, depths) == values).all()


def test_depths_between_layers() -> None:
    values = np.array([[0.0, 1.0, 4.0]])
    got = at_depths(values, np.array([0, 0.5, 1]), np.array([0, 0.25, 0.5, 0.75, 1]))
    np.testing.assert_allclose(got, [[0, 0.5, 1, 2.5, 4]])
    holed = np.array([[math.nan, 1.0, 4.0]])
    got = at_depths(holed, np.array([0, 0.5, 1]), np.array([0.25, 0.5, 1]))
    assert math.isnan(got[0, 0])
    assert got[0, 1:].tolist() == [1.0, 4.0]


def test_sentences_by_interval() -> None:
    values = np.random.default_rng(0).standard_normal(400)
    assert mean_of(values + 1, 0).sign == 1
    assert mean_of(values - 1, 0).sign == -1
    assert mean_of(values, 0).sign == 0
    assert mean_of(np.array([5.0]), 0).sign == 0
    assert "no interval: 1 item" in str(mean_of(np.array([5.0]), 0))


def _views(values: dict[str, list[float]], half: float = 0.1) -> Profile:
    rows = [
        {"layer": k, "depth": k / 2, "metric": metric, "normalization": "raw", "value": value, "ci_low": value - half,
         "ci_high": value + half}
        for metric, curve in values.items()
        for k, value in enumerate(curve)
    ]  # fmt: skip
    return Profile(pd.DataFrame(rows), {}, pd.DataFrame())


def test_augmentation_invariance_has_a_sign_per_metric() -> None:
    """Lower InfoNCE, higher LiDAR and higher DiME say that views are more alike."""
    base = _views({"infonce": [3.0, 3.0, 3.0], "lidar": [1.0, 1.0, 1.0], "dime": [0.5, 0.5, 0.5]})
    other = _views({"infonce": [2.0, 2.0, 2.9], "lidar": [2.0, 2.0, 2.0], "dime": [0.9, 0.9, 0.9]})
    (line,) = invariance(base, other, ("base", "tuned"))
    assert line.startswith("Augmentation invariance, tuned against base: more invariant. ")
    assert (
        "InfoNCE -0.7 on average over layers (intervals apart towards more at 2 of 3, towards less at 0)"
        in line
    )
    (line,) = invariance(other, base, ("tuned", "base"))
    assert "base against tuned: less invariant. " in line
    mixed = _views({"infonce": [2.0, 2.0, 2.0], "lidar": [0.2, 0.2, 0.2], "dime": [0.5, 0.5, 0.5]})
    assert (
        "more invariant by some metrics, not by others"
        in invariance(base, mixed, ("base", "mixed"))[0]
    )
    assert "not clearly more or less invariant" in invariance(base, base, ("base", "same"))[0]
    assert invariance(base, _views({"prompt_entropy": [1.0, 2.0, 3.0]}), ("base", "none")) == []
    assert set(INVARIANCE) == {"infonce", "lidar", "dime"}


def test_augmentation_invariance_meets_at_the_same_depth() -> None:
    base = _views({"infonce": [3.0, 2.0, 1.0]})
    twice = Profile(
        pd.DataFrame(
            [
                {"layer": k, "depth": k / 4, "metric": "infonce", "normalization": "raw", "value": 2.5 - k / 2,
                 "ci_low": 2.4 - k / 2, "ci_high": 2.6 - k / 2}
                for k in range(5)
            ]
        ),
        {},
        pd.DataFrame(),
    )  # fmt: skip
    assert "InfoNCE -0.5 on average" in invariance(base, twice, ("base", "deep"))[0]


@pytest.mark.contract
@pytest.mark.parametrize("share", [0.02, 0.04, 0.06, 0.08, 0.12, 0.3])
def test_a_dip_is_a_valley_as_in_a_profile(share: float) -> None:
    curve = [4.0] * 8 + [4.0 * (1 - share)] * 5 + [4.0] * 8
    prompts = np.array(curve) + 0.01 * np.random.default_rng(0).normal(size=(40, 21))
    assert dip_of(prompts, 0).is_valley == (share >= LEAST_SHARE)


def test_a_percentile_interval_leaves_undefined_draws_out() -> None:
    found = percentile_interval(0.5, np.array([0.0, 1.0, math.nan]), 3)
    assert (found.low, found.high, found.n) == (pytest.approx(0.025), pytest.approx(0.975), 3)
    assert not percentile_interval(0.5, np.array([math.nan])).known


def test_the_mean_of_a_few_numbers_has_students_interval() -> None:
    values = np.array([0.1, 0.4, 0.3])
    found = student_interval(values)
    low, high = stats.t.interval(0.95, 2, values.mean(), stats.sem(values))
    assert (found.value, found.low, found.high) == pytest.approx((values.mean(), low, high))
    assert found.n == 3
    assert not student_interval(values[:1]).known
    assert not student_interval(values, fewest=4).known
