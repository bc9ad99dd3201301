"""Layouts against scikit-learn, which computes the same in other ways."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.manifold import trustworthiness
from sklearn.metrics.pairwise import cosine_distances

from layerscope.maps.layout import MOST_LAYERS, lay_out, spread


def vectors(n: int = 60, width: int = 16, layers: int = 4) -> np.ndarray:
    draw = np.random.default_rng(0)
    steps = draw.normal(size=(layers, n, width)) * np.linspace(2, 0.3, width)
    return np.cumsum(steps, axis=0) + 1.0


def test_trust_and_neighbors_are_those_of_cosines() -> None:
    rows = vectors(n=90)
    points, near, trust = lay_out(rows)
    assert points.shape == (4, 90, 2)
    for layer in range(4):
        expected = trustworthiness(rows[layer], points[layer], n_neighbors=10, metric="cosine")
        assert trust[layer] == pytest.approx(expected, abs=1e-3)
        far = cosine_distances(rows[layer])
        np.fill_diagonal(far, np.inf)
        assert (near[layer] == np.argsort(far, axis=1)[:, :10]).all()


def test_each_layer_starts_from_the_one_before() -> None:
    """Points of a layer lie near those of the layer before, and nearer than a start of its own."""
    rows = vectors(layers=1)[0]
    close = rows + 0.02 * np.random.default_rng(1).normal(size=rows.shape)
    points, _, _ = lay_out([rows, close])
    alone, _, _ = lay_out([close])
    moved = np.abs(points[1] - points[0]).mean()
    assert moved < 0.2 * np.abs(points[0]).mean()
    assert moved < np.abs(alone[0] - points[0]).mean()
    started, _, _ = lay_out([close], points[0])
    np.testing.assert_allclose(started[0], points[1], atol=1e-3)


def test_a_layer_where_all_texts_are_the_same_has_no_picture() -> None:
    rows = vectors()
    rows[0] = 1.0
    rows[3] = np.nan
    points, _, trust = lay_out(rows)
    assert trust[[0, 3]].tolist() == [0, 0]
    assert (trust[[1, 2]] > 0).all()
    assert not points[[0, 3]].any()


@pytest.mark.parametrize("count", [1, 7, 8, 9, 31, 101])
def test_layers_are_spread_and_include_those_that_are_used(count: int) -> None:
    layers = list(range(count))
    used = [count - 1, count // 3]
    shown = spread(layers, used)
    assert shown == sorted(shown)
    assert {0, *used} <= set(shown)
    assert min(count, MOST_LAYERS - 2) <= len(shown) <= MOST_LAYERS
