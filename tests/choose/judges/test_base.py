"""Judges: resampling, combining."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from layerscope.choose import Scores, weigh_by_reliability
from layerscope.choose.judges.base import scores_of_items, text_weights
from layerscope.choose.labels.read import build
from layerscope.choose.labels.scores import score_labels
from layerscope.core.scores import DRAWS
from tests.choose.judges.support import CANDIDATES


def test_resamples_are_shares_and_seeded():
    weights = text_weights(50, seed=1)
    assert weights.shape == (DRAWS, 50)
    assert np.allclose(weights.sum(1), 1)
    assert (weights == text_weights(50, seed=1)).all()


def test_the_interval_of_a_mean_is_as_wide_as_theory_says():
    items = np.random.default_rng(0).normal(size=(1, 400))
    judgment = scores_of_items("test", items, seed=0, sides=1)
    assert judgment.draws is not None
    assert judgment.draws.std() == pytest.approx(1 / 20, rel=0.15)
    doubled = scores_of_items("test", items, seed=0)
    assert doubled.draws is not None
    assert doubled.draws.std() == pytest.approx(2 * judgment.draws.std())


def test_a_judge_of_pure_noise_has_no_say():
    rng = np.random.default_rng(0)
    truth = np.linspace(0, 1, 12)
    sure = Scores(truth, truth[:, None] + 0.01 * rng.normal(size=(12, 50)), source="sure")
    noise = rng.normal(size=12)
    unsure = Scores(noise, noise[:, None] + 3 * rng.normal(size=(12, 50)), source="unsure")
    both = weigh_by_reliability([sure, unsure])
    score = (truth - truth.mean()) / truth.std()
    assert np.allclose(both.values / both.values.std(), score)  # what is noise has no weight
    assert both.best() == sure.best()
    assert weigh_by_reliability([sure]) is sure


def test_what_counts_more_decides():
    """Two judges, equally sure of opposite orders."""
    noise = 0.01 * np.random.default_rng(0).normal(size=(12, 50))
    up = np.linspace(0, 1, 12)
    first, second = (
        Scores(score, score[:, None] + noise, source=name)
        for name, score in (("up", up), ("down", 1 - up))
    )
    assert weigh_by_reliability([replace(first, weight=2.0), second]).best() == first.best()
    assert weigh_by_reliability([first, replace(second, weight=2.0)]).best() == second.best()


def test_labels_find_the_planted_groups():
    """The same twelve groups, as classes of 120 labeled texts."""
    labeled = build("classification", [((f"text {i}",), str(i % 12)) for i in range(120)])
    order = [int(text.split()[1]) for text in labeled.texts]

    def vectors(readout):
        return CANDIDATES.vectors(readout)[:, order]

    scores = score_labels(labeled, CANDIDATES.readouts, CANDIDATES.layers, vectors)
    assert scores.values[4] > scores.values[0] + 0.01


def test_judges_that_resample_differently_often_are_combined() -> None:
    """Labels are resampled 300 times and texts 200: two judges that agree keep their order."""
    rng = np.random.default_rng(0)
    score = np.linspace(0, 1, 12)
    parts = [
        Scores(score, score[:, None] + 0.01 * rng.standard_normal((12, n)), source=name)
        for name, n in (("a", 300), ("b", 200))
    ]
    both = weigh_by_reliability(parts)
    assert both.draws is not None
    assert both.draws.shape == (12, 200)
    assert (np.diff(both.values) > 0).all()
