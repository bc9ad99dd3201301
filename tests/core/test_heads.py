"""Heads against brute force: regressions fitted again without the texts they are asked about."""

from __future__ import annotations

import numpy as np
import pytest

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


def noisy_teacher(texts: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(texts, width)) + 3
    return vectors, make_target(vectors @ rng.normal(size=(width, 5)) + rng.normal(size=(texts, 5)))


def refit(vectors: np.ndarray, target: np.ndarray, penalty: float, without: list[int]) -> Head:
    """The head of the regression without some texts, by the textbook's formula; the penalty is that
    of all texts."""
    remaining = np.delete(np.arange(len(vectors)), without)
    mean = vectors[remaining].mean(0)
    rows, goal = vectors[remaining] - mean, target[remaining] - target[remaining].mean(0)
    weight = penalty * ((vectors - vectors.mean(0)) ** 2).sum() / rows.shape[1]
    system = rows.T @ rows + weight * np.eye(rows.shape[1])
    return Head(mean, np.linalg.solve(system, rows.T @ goal))


# more texts than features, and fewer
@pytest.mark.parametrize(("texts", "width"), [(30, 8), (12, 20)])
@pytest.mark.parametrize("penalty", [0.003, 0.3])
def test_predictions_of_texts_left_out_are_those_of_a_fit_without_them(
    texts: int, width: int, penalty: float
) -> None:
    vectors, target = noisy_teacher(texts, width)
    ridge = Ridge(vectors, target, penalty)
    whole = refit(vectors, target, penalty, [])
    np.testing.assert_allclose(ridge.head().matrix, whole.matrix, atol=1e-9)
    alone = [refit(vectors, target, penalty, [i])(vectors[i]) for i in range(texts)]
    np.testing.assert_allclose(ridge.unseen(), np.stack(alone), atol=1e-8)
    similarities = ridge.unseen_similarities(block=7)
    for i in range(texts):
        for j in range(i):
            first, second = unit(refit(vectors, target, penalty, [i, j])(vectors[[i, j]]))
            expected = pytest.approx(first @ second, abs=1e-5)
            assert similarities[i, j] == expected
            assert similarities[j, i] == expected


def test_few_texts_do_not_tell_what_was_left_out() -> None:
    """Centered on all texts, noise of fewer texts than features was predicted: each is what the
    others lack of zero."""
    rng = np.random.default_rng(0)
    target = make_target(rng.normal(size=(60, 5)))
    ridge = Ridge(rng.normal(size=(60, 300)), target, 1e-4)
    assert abs(np.corrcoef(ridge.unseen().ravel(), target.ravel())[0, 1]) < 0.2
    pairs = np.triu_indices(60, 1)
    expected = (unit(target) @ unit(target).T)[pairs]
    assert abs(np.corrcoef(ridge.unseen_similarities()[pairs], expected)[0, 1]) < 0.1


def test_a_linear_teacher_is_learned_exactly() -> None:
    vectors, _ = noisy_teacher(60, 6)
    target = (vectors - vectors.mean(0)) @ np.random.default_rng(1).normal(size=(6, 3))
    np.testing.assert_allclose(Ridge(vectors, target, 1e-9).head()(vectors), target, atol=1e-5)


@pytest.mark.parametrize("texts", [2, 3, 40])
def test_a_target_has_the_mean_of_the_teachers_similarities(texts: int) -> None:
    rng = np.random.default_rng(texts)
    teachers = rng.normal(size=(texts, 6)), rng.normal(size=(texts, 9))
    target = make_target(*teachers)
    joined = np.concatenate([unit(rows - rows.mean(0)) for rows in teachers], 1) / np.sqrt(2)
    joined -= joined.mean(0)
    np.testing.assert_allclose(target @ target.T, joined @ joined.T, atol=1e-9)


def test_a_target_keeps_the_main_directions() -> None:
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(400, 3)) @ rng.normal(size=(3, WIDTH + 50))
    target = make_target(wide)
    assert target.shape == (400, WIDTH)
    whole = unit(wide - wide.mean(0))
    whole -= whole.mean(0)
    np.testing.assert_allclose(target @ target.T, whole @ whole.T, atol=1e-8)


def test_a_head_is_a_dense_layer() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(4, 6))
    for head in (Head(rng.normal(size=6)), Head(rng.normal(size=6), rng.normal(size=(6, 3)))):
        np.testing.assert_allclose(vectors @ head.weight.T + head.bias, head(vectors), atol=1e-12)


def test_the_same_vector_everywhere_predicts_nothing() -> None:
    ridge = Ridge(np.ones((20, 4)), noisy_teacher(20, 4)[1])
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

    def same_class(head: Head) -> float:
        """How often the nearest of the texts without labels is of the same class."""
        vectors = unit(head(rows[200:]))
        cosines = vectors @ vectors.T
        np.fill_diagonal(cosines, -1)
        return float((classes[200:][cosines.argmax(1)] == classes[200:]).mean())

    shaped = with_classes(head, rows[:200], rows[:128], classes[:128])
    assert same_class(shaped) > same_class(head) + 0.1
    few = with_classes(head, rows[:200], rows[:8], classes[:8])(rows)
    np.testing.assert_allclose(few[:, :30], head(rows))
    # eight labels count a sixteenth of what 128 do
    share = np.sqrt((few[:200, 30:] ** 2).sum() / (few[:200, :30] ** 2).sum())
    assert share == pytest.approx(CLASS_SHARE * 8 / ENOUGH_LABELS)
