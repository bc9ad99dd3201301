"""Numbers over prompts: known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from layerscope.studies.shared.curves import at_depths, dip_of, mean_of


def test_a_dip_by_hand() -> None:
    rng = np.random.default_rng(0)
    curve = np.array([4.0, 5.0, 2.0, 1.0, 3.0, 4.5])
    values = curve + 0.1 * rng.standard_normal((200, 6))
    dip = dip_of(values, seed=0)
    mean = values.mean(axis=0)
    assert dip.place == 3
    assert dip.value == pytest.approx(mean[3])
    assert dip.shoulder == pytest.approx(mean[5])  # the lower of 5.0 and 4.5
    assert dip.depth.value == pytest.approx(mean[5] - mean[3])
    assert dip.depth.low - 0.02 < 3.5 < dip.depth.high
    half = 1.96 * (values[:, 5] - values[:, 3]).std(ddof=1) / math.sqrt(200)
    assert dip.depth.high - dip.depth.low == pytest.approx(2 * half, rel=0.15)
    assert dip.is_valley


@pytest.mark.parametrize("curve", [[1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0], [1.0, 3.0, 1.0, 0.5]])
def test_a_curve_without_a_dip(curve: list[float]) -> None:
    dip = dip_of(np.tile(curve, (5, 1)), seed=0)
    assert dip.depth.value == 0
    assert not dip.is_valley


def test_a_shallow_or_unsure_dip_is_no_valley() -> None:
    rng = np.random.default_rng(1)
    shallow = np.tile([4.0, 3.8, 4.0], (50, 1))
    assert dip_of(shallow, 0).depth.value == pytest.approx(0.2)
    assert not dip_of(shallow, 0).is_valley
    unsure = np.array([4.0, 3.0, 4.0]) + np.array([0.0, 1.0, 0.0]) * 8 * rng.standard_normal((12, 1))
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


def test_what_an_interval_says() -> None:
    values = np.random.default_rng(0).standard_normal(400)
    assert mean_of(values + 1, 0).sign == 1
    assert mean_of(values - 1, 0).sign == -1
    assert mean_of(values, 0).sign == 0
    assert mean_of(np.array([5.0]), 0).sign == 0
    assert "no interval: 1 item" in str(mean_of(np.array([5.0]), 0))
