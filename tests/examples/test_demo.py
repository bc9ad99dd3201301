"""What the demo proves with: a probe on a few labels."""

from __future__ import annotations

import numpy as np
import pytest
from demo import few_shot_accuracy, neighbor_accuracy, typical

from tests.selection.judges.support import planted


def test_the_probe_finds_groups_and_is_at_chance_without_them():
    labels = np.arange(480) % 12
    assert few_shot_accuracy(planted(0.3, count=480), labels, shots=8) > 95
    noise = np.random.default_rng(0).normal(size=(480, 16))
    assert few_shot_accuracy(noise, labels, shots=8) == pytest.approx(100 / 12, abs=5)


def test_neighbors_of_the_same_label_are_counted():
    vectors = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    assert neighbor_accuracy(vectors, np.array([0, 0, 1, 1])) == 100
    assert neighbor_accuracy(vectors, np.array([0, 1, 1, 1])) == 50


def test_typical_texts_are_the_middle_by_what_was_gained():
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    today, now = rng.normal(size=(60, 8)), np.eye(3)[labels] + 0.3 * rng.normal(size=(60, 3))
    found = typical(today, now, labels)
    assert len(set(found)) == 5

    def right(vectors):
        rows = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        near = [[j for j in np.argsort(-row) if j != i][:3] for i, row in enumerate(rows @ rows.T)]
        return np.array([sum(labels[j] == labels[i] for j in some) for i, some in enumerate(near)])

    gains = right(now) - right(today)
    assert set(gains[found]) <= {int(np.median(gains)), int(np.floor(np.median(gains)))}
