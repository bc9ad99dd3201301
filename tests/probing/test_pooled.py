"""Logistic regression finds the layer that holds the classes; neighbors vote as counted by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from layerscope.probing.examples import Split
from layerscope.probing.probes import STRENGTHS, fit_linear, fit_neighbors, vote

CLASSES = 4


def made_vectors(items: int = 400) -> tuple[np.ndarray, np.ndarray, Split]:
    """Return vectors of two layers, of which the second holds the class."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, items)
    vectors = rng.standard_normal((2, items, 8)) * [[[5.0]], [[1.0]]] + 3
    vectors[1] += 2 * rng.standard_normal((CLASSES, 8))[labels]
    split = Split(*np.split(np.arange(items), [240, 300]))
    return vectors.astype(np.float32), labels, split


@pytest.mark.parametrize("fit", [fit_linear, fit_neighbors])
def test_classes_are_found_in_the_layer_that_holds_them(fit) -> None:  # type: ignore[no-untyped-def]
    vectors, labels, split = made_vectors()
    fitted = fit(vectors, labels, split, CLASSES)
    accuracy = (fitted.classes == labels[split.test]).mean(1)
    assert accuracy[1] > 0.85
    assert abs(accuracy[0] - 0.25) < 0.15
    assert fitted.validation[1] > fitted.validation[0]
    alone = fit(vectors[1:], labels, split, CLASSES)
    assert np.array_equal(alone.classes[0], fitted.classes[1])


def test_the_validation_part_chooses_the_strength_and_the_test_part_nothing() -> None:
    vectors, labels, split = made_vectors()
    fitted = fit_linear(vectors, labels, split, CLASSES)
    assert set(fitted.settings["strength"]) <= set(STRENGTHS)
    other = labels.copy()
    other[split.test] = 0
    assert np.array_equal(fit_linear(vectors, other, split, CLASSES).classes, fitted.classes)
    other[split.validation] = 0
    changed = fit_linear(vectors, other, split, CLASSES)
    assert not np.array_equal(changed.validation, fitted.validation)


def test_a_class_that_is_not_trained_on_is_never_predicted() -> None:
    vectors, labels, split = made_vectors()
    labels[split.train] = labels[split.train] % 3
    for fit in (fit_linear, fit_neighbors):
        labels[split.validation] = labels[split.validation] % 3
        assert (fit(vectors, labels, split, CLASSES).classes < 3).all()


def vote_by_hand(
    bank: np.ndarray, labels: np.ndarray, query: np.ndarray, classes: int, k: int
) -> int:
    """Return the class with the most votes, counted one by one."""
    cosines = bank @ query / np.linalg.norm(bank, axis=1) / np.linalg.norm(query)
    nearest = np.argsort(-cosines, kind="stable")[:k]
    votes = Counter(labels[nearest].tolist())
    total: Counter[int] = Counter()
    for i in nearest:
        total[int(labels[i])] += cosines[i]
    return min(range(classes), key=lambda c: (-votes[c], -total[c], c))


@pytest.mark.parametrize("count", [90, 7])
def test_neighbors_vote_as_counted_by_hand(count: int) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((count + 40, 8)) * rng.uniform(0.1, 10, (count + 40, 1))
    labels = rng.integers(0, 6, count + 40)
    bank, queries = np.split(np.arange(count + 40), [count])
    voted = vote(vectors, labels, bank, queries, 6)
    for predicted, query in zip(voted, queries, strict=True):
        k = min(20, count)
        assert predicted == vote_by_hand(vectors[bank], labels[bank], vectors[query], 6, k)
