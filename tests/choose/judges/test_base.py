"""Judges: resampling, combining, and labels as a judge."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from layerscope.choose import Scores, weigh_by_reliability
from layerscope.choose.judges.base import scores_of_items, text_weights
from layerscope.choose.label_scores import score_labels
from layerscope.choose.labels import build
from layerscope.core.scores import DRAWS
from tests.choose.judges.support import CANDIDATES

TRUTH = np.linspace(0, 1, 12)


def noisy(values: np.ndarray, error: float, draws: int = 50, seed: int = 0) -> Scores:
    noise = np.random.default_rng(seed).normal(size=(len(values), draws))
    return Scores(values, values[:, None] + error * noise)


def test_resamples_are_shares_and_seeded():
    weights = text_weights(50, seed=1)
    assert weights.shape == (DRAWS, 50)
    assert np.allclose(weights.sum(1), 1)
    assert (weights == text_weights(50, seed=1)).all()


def test_the_interval_of_a_mean_is_as_wide_as_theory_says():
    items = np.random.default_rng(0).normal(size=(1, 400))
    one_sided, doubled = (scores_of_items("test", items, 0, sides).draws for sides in (1, 2))
    assert one_sided.std() == pytest.approx(1 / 20, rel=0.15)
    assert doubled.std() == pytest.approx(2 * one_sided.std())


def test_a_judge_of_pure_noise_has_no_say():
    sure = noisy(TRUTH, 0.01)
    noise = np.random.default_rng(1).normal(size=12)
    both = weigh_by_reliability([sure, noisy(noise, 3.0)])
    assert np.allclose(both.values / both.values.std(), (TRUTH - TRUTH.mean()) / TRUTH.std())
    assert weigh_by_reliability([sure]) is sure


def test_the_source_with_more_weight_decides():
    first, second = noisy(TRUTH, 0.01), noisy(1 - TRUTH, 0.01)  # equally sure of opposite orders
    assert weigh_by_reliability([replace(first, weight=2.0), second]).best() == first.best()
    assert weigh_by_reliability([first, replace(second, weight=2.0)]).best() == second.best()


def test_judges_that_resample_differently_often_are_combined() -> None:
    both = weigh_by_reliability([noisy(TRUTH, 0.01, 300), noisy(TRUTH, 0.01, 200, seed=1)])
    assert both.draws is not None
    assert both.draws.shape == (12, 200)
    assert (np.diff(both.values) > 0).all()


def test_labels_find_the_planted_groups():
    """The same twelve groups, as classes of 120 labeled texts."""
    labeled = build("classification", [((f"text {i}",), str(i % 12)) for i in range(120)])
    order = [int(text.split()[1]) for text in labeled.texts]

    def vectors(readout):
        return CANDIDATES.vectors(readout)[:, order]

    scores = score_labels(labeled, CANDIDATES.readouts, CANDIDATES.layers, vectors)
    assert scores.values[4] > scores.values[0] + 0.01
