"""Scores from items against scipy and scikit-learn, paired gains, and the layers that tie for best."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score

from layerscope.evaluation.run import ItemScores, gains, resampled, same_items, tied_best


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
        assert ItemScores("spearman", values, gold).score() == pytest.approx(spearmanr(values, gold).statistic, abs=1e-12)
    labels = (gold > 2).astype(float)
    if labels.any():
        assert ItemScores("ap", values, labels).score() == pytest.approx(average_precision_score(labels, values), abs=1e-12)
    chosen = np.random.default_rng(seed).integers(0, count, count)  # a resample repeats items: ties in any case
    assert ItemScores("mean", values).score(chosen) == pytest.approx(values[chosen].mean())
    if labels[chosen].any():
        drawn = ItemScores("ap", values, labels).score(chosen)
        assert drawn == pytest.approx(average_precision_score(labels[chosen], values[chosen]), abs=1e-12)


def test_what_has_no_score_has_none() -> None:
    assert math.isnan(ItemScores("spearman", np.ones(4), np.arange(4.0)).score())
    assert math.isnan(ItemScores("ap", np.arange(4.0), np.zeros(4)).score())


def layers_of(noise: dict[int, float], count: int = 300, seed: int = 0) -> dict[int, ItemScores]:
    """Layers that share most of their errors, as layers of one model do, and differ in a little more noise each."""
    rng = np.random.default_rng(seed)
    gold = rng.normal(size=count)
    shared = gold + rng.normal(size=count)
    return {layer: ItemScores("spearman", shared + size * rng.normal(size=count), gold) for layer, size in noise.items()}


def scored(items: dict[int, ItemScores]) -> dict[int, float]:
    return {layer: item.score() for layer, item in items.items()}


def test_a_layer_against_itself_has_no_width() -> None:
    items = layers_of({0: 0.5, 1: 0.1, 2: 0.1})
    found = gains(scored(items), resampled(items), 2)
    assert (found[2].value, found[2].low, found[2].high) == (0.0, 0.0, 0.0)
    assert found[0].low <= found[0].value <= found[0].high


def test_gains_are_paired() -> None:
    items = layers_of({0: 0.1, 1: 0.12})
    paired = gains(scored(items), resampled(items), 1)[0]
    first, second = resampled({0: items[0]}, seed=1)[0], resampled({1: items[1]}, seed=2)[1]
    low, high = np.quantile(first - second, [0.025, 0.975])
    assert paired.high - paired.low < (high - low) / 4


def test_the_draws_are_the_same_for_every_layer_and_follow_the_seed() -> None:
    items = layers_of({0: 0.3, 1: 0.3})
    same = resampled({0: items[0], 1: items[0]}, seed=3, resamples=20)
    np.testing.assert_array_equal(same[0], same[1])
    assert len(same[0]) == 20
    np.testing.assert_array_equal(same[0], resampled({0: items[0]}, seed=3, resamples=20)[0])
    assert not np.array_equal(same[0], resampled({0: items[0]}, seed=4, resamples=20)[0])


def test_an_interval_covers_the_truth() -> None:
    """Means of paired differences of 0.1: the interval holds it about 19 times in 20."""
    held = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        base = rng.normal(size=120)
        items = {0: ItemScores("mean", base + 0.1 + rng.normal(size=120) * 0.4), 1: ItemScores("mean", base)}
        gain = gains(scored(items), resampled(items, resamples=200), 1)[0]
        held += gain.low <= 0.1 <= gain.high
    assert 51 <= held <= 60


def test_ties_hold_the_best_and_what_noise_cannot_tell_from_it() -> None:
    items = layers_of({0: 3.0, 1: 0.2, 2: 0.2, 3: 0.2, 4: 1.5})
    scores = scored(items)
    drawn = resampled(items)
    tied = tied_best(scores, drawn)
    assert max(scores, key=lambda layer: scores[layer]) in tied
    assert set(tied) == {1, 2, 3}
    assert tied_best({**scores, 1: math.nan}, drawn) == [2, 3]
    assert tied_best({}, {}) == []
    assert tied_best(scores, {4: drawn[4]}) == [4]


def test_only_the_same_items_are_paired() -> None:
    assert same_items([ItemScores("mean", np.zeros(3)), ItemScores("mean", np.ones(3))])
    assert not same_items([ItemScores("mean", np.zeros(3)), ItemScores("mean", np.ones(4))])
