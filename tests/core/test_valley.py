"""One detector of a valley: known answers, noise, and that everything that speaks of valleys
agrees."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from layerscope.choose.label_free import read_valley
from layerscope.core.statistics import LEAST_SHARE, Valley, deepest_share, find_valley
from layerscope.profiling.run import entropy_valley
from tests.choose.support import evidence, profile

SHALLOW = [4.0] * 10 + [3.75] + [4.0] * 10  # 6 %


def valley_of(curve: list[float], half: float | None = None) -> Valley:
    values = np.array(curve)
    bounds = {} if half is None else {"low": values - half, "high": values + half}
    valley = find_valley(values, **bounds)
    assert valley is not None
    return valley


def test_by_hand() -> None:
    valley = valley_of([4.0, 5.0, 2.0, 1.0, 3.0, 4.5])
    assert (valley.place, valley.shoulder_place, valley.value, valley.shoulder) == (3, 5, 1.0, 4.5)
    assert valley.depth.value == 3.5
    assert valley.share == pytest.approx(3.5 / 4.5)
    assert valley.probability == 1.0
    assert valley.clear


@pytest.mark.parametrize(
    "curve",
    [[4.0, 3.0, 2.0], [1.0, 3.0, 2.0], [1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 2.0], [4.0, 3.9, 4.0]],
)
def test_a_fall_a_peak_and_a_shallow_dip_are_no_valleys(curve: list[float]) -> None:
    assert not valley_of(curve).clear
    assert deepest_share(np.array(curve)) == pytest.approx(valley_of(curve).share)


def test_an_undefined_curve_has_none() -> None:
    assert find_valley(np.array([4.0, 1.0])) is None
    assert find_valley(np.array([4.0, math.nan, 4.0])) is None


def test_wide_intervals_make_a_valley_unsure() -> None:
    assert valley_of(SHALLOW, 0.005).probability > 0.99
    assert valley_of(SHALLOW, 0.005).clear
    assert 0.02 < valley_of(SHALLOW, 0.4).probability < 0.9
    assert not valley_of(SHALLOW, 0.4).clear
    assert valley_of([4.0] * 21, 0.05).probability < 0.05


def test_layers_are_compared_item_by_item_where_items_are_known() -> None:
    """Prompts differ far more than layers do: as separate intervals nothing is sure, prompt by
    prompt everything is."""
    rng = np.random.default_rng(0)
    shallow = np.array([4.0] * 5 + [3.7] + [4.0] * 5)
    samples = shallow + rng.normal(size=(60, 1)) + 0.02 * rng.normal(size=(60, 11))
    curve, half = samples.mean(0), 1.96 * samples.std(0, ddof=1) / math.sqrt(60)
    paired = find_valley(curve, samples=samples)
    separate = find_valley(curve, low=curve - half, high=curve + half)
    assert paired is not None
    assert separate is not None
    assert (paired.clear, separate.clear) == (True, False)
    assert paired.depth.value == pytest.approx(separate.depth.value)


@pytest.mark.parametrize(("error", "most"), [(0.1, 0), (1.0, 10)])
def test_noise_alone_makes_no_valley(error: float, most: int) -> None:
    noise = 4 + error * np.random.default_rng(0).normal(size=(100, 20, 25))
    valleys = [find_valley(samples.mean(0), samples=samples) for samples in noise]
    assert sum(valley is not None and valley.clear for valley in valleys) <= most


@pytest.mark.parametrize("share", [0.02, 0.04, 0.06, 0.08, 0.12, 0.3])
def test_the_profile_and_the_rule_agree(share: float) -> None:
    curve = [4.0] * 8 + [4.0 * (1 - share)] * 5 + [4.0] * 8
    run = profile({"prompt_entropy": curve})
    probability, _ = read_valley(evidence({"prompt_entropy": (curve, 0.01)}))
    assert (entropy_valley(run.table) is not None) == (share >= LEAST_SHARE)
    assert bool(probability and probability >= 0.5) == (share >= LEAST_SHARE)


@pytest.mark.parametrize("half", [0.01, 0.1, 0.2, 0.4])
def test_a_noisy_profile_is_told_the_same_everywhere(half: float) -> None:
    run = profile({"prompt_entropy": SHALLOW}, half=half)
    valley = valley_of(SHALLOW, half)
    assert (entropy_valley(run.table) is not None) == valley.clear
    probability, _ = read_valley(evidence({"prompt_entropy": (SHALLOW, half)}))
    assert probability == valley.probability


def test_a_profile_without_intervals_is_judged_by_depth_alone() -> None:
    table = profile({"prompt_entropy": [4.0, 3.0, 4.0]}).table
    assert entropy_valley(table.drop(columns=["ci_low", "ci_high"])) is not None
    assert entropy_valley(table.assign(ci_low=math.nan, ci_high=math.nan)) is not None
    assert entropy_valley(pd.concat([table])) is not None
