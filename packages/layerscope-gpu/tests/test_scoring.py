"""Batched logistic regression and k-means against scikit-learn's, fit by fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import v_measure_score

from layerscope_gpu.scoring import regression
from layerscope_gpu.scoring.kmeans import Clustering, cluster, v_measures
from layerscope_gpu.scoring.regression import Classification, classify, fit

pytestmark = pytest.mark.filterwarnings("ignore")


def made_up(
    rows: int, width: int, classes: int, scale: float = 3.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Vectors as a language model's: a long mean, few directions that vary much."""
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % classes
    spread = scale / np.sqrt(1 + np.arange(width))
    noise = rng.normal(size=(rows, width))
    return (
        (rng.normal(size=(classes, width))[labels] + noise) * spread + rng.normal(size=width)
    ).astype(np.float32), labels


@pytest.mark.parametrize(
    ("rows", "width", "classes"),
    [(40, 64, 4), (120, 32, 5), (60, 24, 2), (20, 48, 2)],
    ids=["wide", "tall", "two", "two-wide"],
)
@pytest.mark.parametrize("steps", [8, 100])
def test_fits_take_the_steps_of_scikit_learn(
    rows: int, width: int, classes: int, steps: int
) -> None:
    x, labels = made_up(rows, width, classes)
    others = np.stack([x, made_up(rows, width, classes, 9.0, 1)[0]])  # the second converges later
    weights, ended = fit(
        torch.as_tensor(others), torch.as_tensor(labels).repeat(2, 1), classes, steps
    )
    for i, vectors in enumerate(others):
        wanted = LogisticRegression(max_iter=steps).fit(vectors, labels)
        ours = weights[i].double().numpy()
        assert abs(ended.steps[i] - wanted.n_iter_[0]) <= 0.1 * wanted.n_iter_[0] + 1
        np.testing.assert_allclose(
            ours[:-1].T, wanted.coef_, atol=0.02 * np.abs(wanted.coef_).max()
        )
        logits = vectors @ ours[:-1] + ours[-1]
        guess = (logits[:, 0] > 0).astype(int) if classes == 2 else logits.argmax(1)
        assert np.mean(guess == wanted.predict(vectors)) > 0.97


@pytest.mark.parametrize("classes", [2, 5])
def test_probabilities_too_small_to_matter_are_left_out(
    classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, labels = made_up(120, 32, classes, 60.0)  # after the first step labels are e^88 apart
    seen, threshold = list[int](), torch.threshold_

    def thresholded(rest: torch.Tensor, least: float, value: float) -> torch.Tensor:
        seen.append(int(((rest > 0) & (rest < least)).sum()))
        return threshold(rest, least, value)

    monkeypatch.setattr(torch, "threshold_", thresholded)
    weights, _ = fit(torch.as_tensor(x)[None], torch.as_tensor(labels)[None], classes)
    assert max(seen) > 10
    monkeypatch.setattr(regression, "_LEAST", 0.0)
    kept, _ = fit(torch.as_tensor(x)[None], torch.as_tensor(labels)[None], classes)
    np.testing.assert_allclose(weights, kept, atol=1e-5 * float(kept.abs().max()))


def test_a_fit_that_has_converged_says_so() -> None:
    x, labels = made_up(30, 16, 3, 0.5)
    _, ended = fit(torch.as_tensor(x)[None], torch.as_tensor(labels)[None], 3)
    assert ended.converged.all()
    _, stopped = fit(torch.as_tensor(x)[None], torch.as_tensor(labels)[None], 3, max_steps=2)
    assert not stopped.converged.any()


def test_draws_of_different_sizes_are_classified_as_one_by_one() -> None:
    x, labels = made_up(90, 12, 3)
    draws = (
        np.arange(0, 24),
        np.arange(30, 54),
        np.arange(24, 40),
        np.flatnonzero(labels[:30] < 2),
    )
    problem = Classification(
        draws, tuple(labels[some] for some in draws), np.arange(50, 90), labels[50:]
    )
    layers = np.stack([x, x[:, ::-1] * 0.3])
    found = classify(torch.as_tensor(layers.copy()), problem, memory=1)  # one layer at a time
    together = classify(torch.as_tensor(layers.copy()), problem)
    np.testing.assert_allclose(found.scores, together.scores, atol=1e-6)
    for layer, score in zip(layers, found.scores, strict=True):
        each = [
            LogisticRegression(max_iter=100)
            .fit(layer[some], labels[some])
            .score(layer[50:], labels[50:])
            for some in draws
        ]
        assert score == pytest.approx(np.mean(each), abs=0.01)


@pytest.mark.parametrize(
    ("rows", "clusters"),
    [(300, 6), (1200, 40), (90, 45)],
    ids=["one batch", "several", "small clusters"],
)
def test_clusters_are_those_of_scikit_learn(rows: int, clusters: int) -> None:
    layers = np.stack(
        [
            made_up(rows, 24, clusters, scale, seed)[0]
            for seed, scale in enumerate((0.5, 1.0, 2.0, 4.0))
        ]
    )
    labels = np.arange(rows) % clusters
    problem = Clustering((np.arange(rows),), (labels,), (clusters,), 100, 42)
    ours = cluster(torch.as_tensor(layers), problem)[:, 0]
    wanted = [
        v_measure_score(
            labels,
            MiniBatchKMeans(clusters, batch_size=100, n_init="auto", random_state=42)
            .fit(x)
            .labels_,
        )
        for x in layers
    ]
    assert (
        np.mean(np.abs(ours - wanted) < 1e-6) >= 0.5
    )  # where clusters are tiny, a rounding may send one another way
    np.testing.assert_allclose(ours, wanted, atol=0.05)


def test_v_measure_is_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    gold, found = rng.integers(0, 5, 80), rng.integers(0, 7, (3, 80))
    found[2] = 0
    wanted = [v_measure_score(gold, row) for row in found]
    np.testing.assert_allclose(v_measures(torch.as_tensor(found), gold), wanted, atol=1e-9)
