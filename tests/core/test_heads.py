"""Heads against brute force: regressions fitted again without the texts they are asked about."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope.core.heads import (
    CLASS_SHARE,
    ENOUGH_LABELS,
    WIDTH,
    Head,
    Ridge,
    make_target,
    unit,
    with_classes,
)


def some(texts: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(texts, width)) + 3
    return vectors, make_target(vectors @ rng.normal(size=(width, 5)) + rng.normal(size=(texts, 5)))


def refit(vectors: np.ndarray, target: np.ndarray, penalty: float, without: list[int]) -> Head:
    """The head of the regression without some texts, by the textbook's formula; the penalty is that
    of all texts."""
    keep = np.delete(np.arange(len(vectors)), without)
    rows, aim = vectors[keep] - vectors[keep].mean(0), target[keep] - target[keep].mean(0)
    weight = penalty * ((vectors - vectors.mean(0)) ** 2).sum() / rows.shape[1]
    return Head(
        vectors[keep].mean(0),
        np.linalg.solve(rows.T @ rows + weight * np.eye(rows.shape[1]), rows.T @ aim),
    )


@pytest.mark.parametrize(
    ("texts", "width"), [(30, 8), (12, 20)]
)  # more texts than features, and fewer
@pytest.mark.parametrize("penalty", [0.003, 0.3])
def test_what_is_said_of_texts_left_out_is_what_a_fit_without_them_says(
    texts: int, width: int, penalty: float
) -> None:
    vectors, target = some(texts, width)
    ridge = Ridge(vectors, target, penalty)
    np.testing.assert_allclose(
        ridge.head().matrix, refit(vectors, target, penalty, []).matrix, atol=1e-9
    )
    alone = np.stack([refit(vectors, target, penalty, [i])(vectors[i]) for i in range(texts)])
    np.testing.assert_allclose(ridge.unseen(), alone, atol=1e-8)
    similar = ridge.unseen_similarities(block=7)
    for i in range(texts):
        for j in range(texts):
            if i != j:
                pair = unit(refit(vectors, target, penalty, [i, j])(vectors[[i, j]]))
                assert similar[i, j] == pytest.approx(pair[0] @ pair[1], abs=1e-5)


def test_few_texts_do_not_tell_what_was_left_out() -> None:
    """Centered on all texts, noise of fewer texts than features was predicted: each is what the
    others lack of zero."""
    rng = np.random.default_rng(0)
    vectors, noise = rng.normal(size=(60, 300)), rng.normal(size=(60, 5))
    target = make_target(noise)
    ridge = Ridge(vectors, target, 1e-4)
    assert abs(np.corrcoef(ridge.unseen().ravel(), target.ravel())[0, 1]) < 0.2
    similar, given = ridge.unseen_similarities(), unit(target) @ unit(target).T
    pairs = np.triu_indices(60, 1)
    assert abs(np.corrcoef(similar[pairs], given[pairs])[0, 1]) < 0.1


def test_a_linear_teacher_is_learned_exactly() -> None:
    vectors, _ = some(60, 6)
    target = (vectors - vectors.mean(0)) @ np.random.default_rng(1).normal(size=(6, 3))
    head = Ridge(vectors, target, 1e-9).head()
    np.testing.assert_allclose(head(vectors), target, atol=1e-5)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000), st.integers(2, 40))
def test_a_target_has_the_mean_of_the_teachers_similarities(seed: int, texts: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = rng.normal(size=(texts, 6)), rng.normal(size=(texts, 9))
    target = make_target(one, other)
    parts = [unit(each - each.mean(0)) for each in (one, other)]
    joined = np.concatenate(parts, 1) / np.sqrt(2)
    joined -= joined.mean(0)
    np.testing.assert_allclose(target @ target.T, joined @ joined.T, atol=1e-9)


def test_a_target_keeps_the_main_directions() -> None:
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(400, 3)) @ rng.normal(size=(3, WIDTH + 50))
    target = make_target(wide)
    assert target.shape == (400, WIDTH)
    full = unit(wide - wide.mean(0))
    np.testing.assert_allclose(
        target @ target.T, (full - full.mean(0)) @ (full - full.mean(0)).T, atol=1e-8
    )


def test_a_head_is_a_dense_layer() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(4, 6))
    for head in (Head(rng.normal(size=6)), Head(rng.normal(size=6), rng.normal(size=(6, 3)))):
        np.testing.assert_allclose(vectors @ head.weight.T + head.bias, head(vectors), atol=1e-12)


def test_the_same_vector_everywhere_predicts_nothing() -> None:
    vectors, target = np.ones((20, 4)), some(20, 4)[1]
    ridge = Ridge(vectors, target)
    assert np.isfinite(ridge.unseen()).all()
    assert np.abs(ridge.head().matrix).max() < 1e-9


def test_labels_bring_their_classes_together_on_texts_that_have_none():
    """Four classes in two of many directions: what a head without labels hardly sees, a shaped one
    does."""
    rng = np.random.default_rng(4)
    centers = np.zeros((4, 30))
    centers[:, :2] = [[1, 1], [1, -1], [-1, 1], [-1, -1]]
    classes = np.arange(400) % 4
    rows = centers[classes] + rng.normal(size=(400, 30)) * np.r_[0.3, 0.3, np.full(28, 1.5)]
    head = Head(rows[:200].mean(0), np.eye(30))

    def found(given: Head) -> float:
        """How often the nearest of the texts without labels is of the same class."""
        vectors = unit(given(rows[200:]))
        near = vectors @ vectors.T
        np.fill_diagonal(near, -1)
        return float((classes[200:][near.argmax(1)] == classes[200:]).mean())

    shaped = with_classes(head, rows[:200], rows[:128], classes[:128])
    few = with_classes(head, rows[:200], rows[:8], classes[:8])
    assert found(shaped) > found(head) + 0.1
    own, classy = few(rows)[:, :30], few(rows)[:, 30:]
    assert np.allclose(own, head(rows))
    # eight labels count a sixteenth of what 128 do
    assert np.sqrt((classy[:200] ** 2).sum() / (own[:200] ** 2).sum()) == pytest.approx(
        CLASS_SHARE * 8 / ENOUGH_LABELS
    )
