"""Scores made on a GPU: those that a CPU makes of the same vectors, which other tests hold against
mteb's and scikit-learn's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from layerscope.core.statistics import spearman
from layerscope_gpu.scoring.kmeans import Clustering, cluster
from layerscope_gpu.scoring.ranking import MEASURES, Pairs, Ranking, pair_scores, rank_scores
from layerscope_gpu.scoring.regression import Classification, classify

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICE = "cuda"
LAYERS, TEXTS, WIDTH, LABELS = 25, 2400, 192, 12
GOLD = np.arange(TEXTS) % LABELS


def made_up() -> torch.Tensor:
    """Layers of vectors with a long mean, few directions that vary much, and labels that are
    clearer from layer to layer."""
    rng = np.random.default_rng(0)
    spread, centers = 4 / np.sqrt(1 + np.arange(WIDTH)), rng.normal(size=(LABELS, WIDTH))[GOLD]
    clearer = np.linspace(0.1, 1, LAYERS)[:, None, None]
    return torch.as_tensor(
        ((clearer * centers + rng.normal(size=(LAYERS, TEXTS, WIDTH))) * spread + 3).astype(
            np.float32
        )
    )


def classified(vectors: torch.Tensor) -> np.ndarray:
    draws = tuple(np.arange(i, i + 96) for i in range(0, 960, 96))
    return classify(
        vectors,
        Classification(draws, tuple(GOLD[d] for d in draws), np.arange(960, TEXTS), GOLD[960:]),
    ).scores


def clustered(vectors: torch.Tensor) -> np.ndarray:
    rows = tuple(np.arange(i, TEXTS, 3) for i in range(3))
    codes = tuple(np.unique(GOLD[some], return_inverse=True)[1] for some in rows)
    return cluster(
        vectors, Clustering(rows, codes, tuple(int(code.max()) + 1 for code in codes), 500, 42)
    ).mean(1)


def paired(vectors: torch.Tensor, labeled: bool) -> np.ndarray:
    first, second = np.random.default_rng(1).integers(0, TEXTS, (2, 3000))
    same = (GOLD[first] == GOLD[second]).astype(float)
    return pair_scores(
        vectors,
        Pairs(first, second, same, True, MEASURES) if labeled else Pairs(first, second, same),
    )[0]


def ranked(vectors: torch.Tensor) -> np.ndarray:
    rng = np.random.default_rng(2)
    queries, documents = np.arange(200), np.arange(200, TEXTS)
    places = np.stack([rng.integers(0, len(documents), 4000), np.repeat(queries, 20)])
    relevant = GOLD[200 + places[0]] == GOLD[places[1]]
    judged = np.stack([places[1][relevant], places[0][relevant], np.ones(relevant.sum())])
    return rank_scores(
        vectors,
        Ranking(queries, documents, places, queries, judged, rng.permutation(len(documents))),
    )[0]


@pytest.mark.parametrize(
    "score",
    [lambda x: paired(x, False), lambda x: paired(x, True), ranked],
    ids=["similar pairs", "labeled pairs", "rankings"],
)
def test_pairs_and_rankings_are_equal(score: Callable[[torch.Tensor], np.ndarray]) -> None:
    there, here = score(made_up().to(DEVICE)), score(made_up())
    np.testing.assert_allclose(there, here, atol=1e-6)
    assert np.ptp(here) > 0.05


@pytest.mark.parametrize("score", [classified, clustered])
def test_fitted_scores_agree_and_order_layers_alike(
    score: Callable[[torch.Tensor], np.ndarray],
) -> None:
    there, here = score(made_up().to(DEVICE)), score(made_up())
    assert abs(there - here).max() <= 0.02
    assert abs((there - here).mean()) <= 0.001  # 0.1 points
    assert float(spearman(there, here)) >= 0.995
    assert np.ptp(here) > 0.2
