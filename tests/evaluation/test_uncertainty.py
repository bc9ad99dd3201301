"""Scores from items against scipy and scikit-learn, their draws and paired gains."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score

from layerscope.core.scores import Scores
from layerscope.core.statistics import bootstrap_rows
from layerscope.evaluation.results import ItemScores, resampled, same_items, score_candidates


def some_pairs(seed: int, count: int, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 6, count).astype(float)
    values = gold + rng.normal(size=count) * 3
    return (np.round(values) if ties else values), gold


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(3, 60), ties=st.booleans())
def test_spearman_and_average_precision(seed: int, count: int, ties: bool) -> None:
    values, gold = some_pairs(seed, count, ties)
    if len(set(values)) > 1 and len(set(gold)) > 1:
        assert ItemScores("spearman", values, gold).score() == pytest.approx(
            spearmanr(values, gold).statistic, abs=1e-12
        )
    labels = (gold > 2).astype(float)
    if labels.any():
        assert ItemScores("ap", values, labels).score() == pytest.approx(
            average_precision_score(labels, values), abs=1e-12
        )
    chosen = np.random.default_rng(seed).integers(
        0, count, count
    )  # a resample repeats items: ties in any case
    assert ItemScores("mean", values).score(chosen) == pytest.approx(values[chosen].mean())
    if labels[chosen].any():
        drawn = ItemScores("ap", values, labels).score(chosen)
        assert drawn == pytest.approx(
            average_precision_score(labels[chosen], values[chosen]), abs=1e-12
        )


def test_what_has_no_score_has_none() -> None:
    assert math.isnan(ItemScores("spearman", np.ones(4), np.arange(4.0)).score())
    assert math.isnan(ItemScores("ap", np.arange(4.0), np.zeros(4)).score())


def layers_of(noise: list[float], count: int = 300, seed: int = 0) -> list[ItemScores]:
    """Layers that share most of their errors, as layers of one model do, and differ in a little
    more noise each."""
    rng = np.random.default_rng(seed)
    gold = rng.normal(size=count)
    shared = gold + rng.normal(size=count)
    return [ItemScores("spearman", shared + size * rng.normal(size=count), gold) for size in noise]


def scored(items: list[ItemScores]) -> Scores:
    return score_candidates([item.score() for item in items], items)


def test_gains_are_paired() -> None:
    items = layers_of([0.1, 0.12])
    _, low, high = scored(items).gains((1,))
    first, second = resampled(items[:1], seed=1)[0], resampled(items[1:], seed=2)[0]
    apart = np.quantile(first - second, [0.025, 0.975])
    assert high[0] - low[0] < (apart[1] - apart[0]) / 4


@pytest.mark.parametrize("rule", ["mean", "spearman", "ap"])
def test_draws_are_the_scores_of_the_drawn_items(rule: str) -> None:
    values, gold = some_pairs(0, 40, ties=True)
    items = [
        ItemScores(rule, one, None if rule == "mean" else (gold > 2).astype(float))
        for one in (values, -values)
    ]  # type: ignore[arg-type]
    rows = bootstrap_rows(40, 20, [3, 40])
    expected = [[item.score(row) for row in rows] for item in items]
    np.testing.assert_allclose(resampled(items, seed=3, draws=20), expected, atol=1e-12)


def test_the_draws_are_the_same_for_every_layer_and_follow_the_seed() -> None:
    items = layers_of([0.3, 0.3])
    same = resampled([items[0], items[0]], seed=3, draws=20)
    np.testing.assert_array_equal(same[0], same[1])
    np.testing.assert_array_equal(same[:1], resampled(items[:1], seed=3, draws=20))
    assert not np.array_equal(same[:1], resampled(items[:1], seed=4, draws=20))


def test_an_interval_covers_the_truth() -> None:
    """Means of paired differences of 0.1: the interval holds it about 19 times in 20."""
    held = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        base = rng.normal(size=120)
        items = [
            ItemScores("mean", base + 0.1 + rng.normal(size=120) * 0.4),
            ItemScores("mean", base),
        ]
        _, low, high = scored(items).gains((1,))
        held += low[0] <= 0.1 <= high[0]
    assert 51 <= held <= 60


def test_layers_without_items_have_no_interval_and_are_never_tied() -> None:
    items = layers_of([3.0, 0.2, 0.2, 0.2, 1.5])
    scores = [item.score() for item in items]
    assert scored(items).tied().tolist() == [False, True, True, True, False]
    some = score_candidates(scores, [None, *items[1:]])
    assert np.isnan(some.gains((1,))[1]).tolist() == [True, False, False, False, False]
    none = score_candidates(scores, [None] * 5)
    assert none.draws is None
    assert none.tied().sum() == 1


def test_only_the_same_items_are_paired() -> None:
    assert same_items([ItemScores("mean", np.zeros(3)), ItemScores("mean", np.ones(3))])
    assert not same_items([ItemScores("mean", np.zeros(3)), ItemScores("mean", np.ones(4))])
