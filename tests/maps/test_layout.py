"""Layouts against scikit-learn and scipy, which compute the same in other ways."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes
from sklearn.decomposition import PCA
from sklearn.manifold import trustworthiness as reference
from sklearn.metrics.pairwise import cosine_distances

from layerscope.maps.layout import (
    lay_out,
    principal,
    same_share,
    trustworthiness,
    turned,
)


def vectors(n: int = 60, width: int = 16, layers: int = 4, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    steps = draw.normal(size=(layers, n, width)) * np.linspace(2, 0.3, width)
    return np.cumsum(steps, axis=0) + 1.0


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("width", [16, 200])
def test_points_are_the_principal_components(width: int) -> None:
    rows = unit(vectors(width=width)[0])
    expected = PCA(2, svd_solver="full").fit_transform(rows)
    expected /= np.sqrt((expected**2).sum(1).mean())
    found = principal(rows - rows.mean(0))
    signs = np.sign((found * expected).sum(0))
    np.testing.assert_allclose(found, expected * signs, atol=1e-9)
    largest = np.abs(found).argmax(0)
    assert (found[largest, [0, 1]] > 0).all()


def test_each_layer_is_turned_like_the_one_before() -> None:
    given = vectors()
    layout = lay_out(given, [0, 1, 2, 3])
    for layer in (1, 2, 3):
        rows = unit(given[layer])
        plain = principal(rows - rows.mean(0))
        rotation, _ = orthogonal_procrustes(plain, layout.points[layer - 1])
        np.testing.assert_allclose(layout.points[layer], plain @ rotation, atol=1e-9)
    again = lay_out(given, [0, 1, 2, 3])
    assert (again.points == layout.points).all()


def test_a_turn_and_a_mirror_are_undone() -> None:
    points = principal(vectors()[0] - vectors()[0].mean(0))
    angle = 2.0
    rotation = np.array(
        [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    ) @ np.diag([1, -1])
    np.testing.assert_allclose(turned(points @ rotation, points), points, atol=1e-12)


def test_trust_and_neighbors_are_those_of_scikit_learn() -> None:
    given = vectors(n=90)
    layout = lay_out(given, [0, 1, 2, 3])
    for layer in range(4):
        rows = given[layer]
        expected = reference(rows, layout.points[layer], n_neighbors=10, metric="cosine")
        assert layout.trust[layer] == pytest.approx(expected, abs=1e-12)
        far = cosine_distances(rows)
        np.fill_diagonal(far, np.inf)
        assert (layout.near[layer] == np.argsort(far, axis=1)[:, :10]).all()
    assert trustworthiness(cosine_distances(given[0]), layout.near[0]) == 1.0


def test_change_counts_the_neighbors_that_are_others() -> None:
    given = vectors(n=40)
    given[2] = given[1] * 3  # a longer vector points the same way
    layout = lay_out(given, [0, 1, 2, 3])
    assert np.isnan(layout.changed[0])
    assert layout.changed[2] == 0
    sets = [[set(row) for row in layer.tolist()] for layer in layout.near]
    expected = 1 - np.mean([len(a & b) / 10 for a, b in zip(sets[2], sets[3], strict=True)])
    assert layout.changed[3] == pytest.approx(expected)
    assert layout.kept[1] == pytest.approx(
        np.mean(
            [
                len(set(a) & set(b)) / 10
                for a, b in zip(layout.near[1].tolist(), _seen(layout.points[1]), strict=True)
            ]
        )
    )
    assert same_share(layout.near[0], layout.near[0]).tolist() == [1.0] * 40


def _seen(points: np.ndarray) -> list[list[int]]:
    far = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(far, np.inf)
    return np.argsort(far, axis=1)[:, :10].tolist()


def test_a_layer_where_all_texts_are_the_same_is_left_out() -> None:
    given = vectors()
    given[0] = 1.0
    given[3] = np.nan
    layout = lay_out(given, [0, 1, 2, 3])
    assert np.isnan(layout.trust[[0, 3]]).all()
    assert np.isfinite(layout.trust[[1, 2]]).all()
    assert (layout.points[[0, 3]] == 0).all()
    assert np.isnan(layout.changed[[0, 1, 3]]).all()


def test_another_reading_starts_like_the_first() -> None:
    given = vectors()
    first = lay_out(given, [0, 1, 2, 3])
    mirrored = lay_out(given @ np.diag([-1.0] * 16), [0, 1, 2, 3], first)
    np.testing.assert_allclose(mirrored.points, first.points, atol=1e-9)
