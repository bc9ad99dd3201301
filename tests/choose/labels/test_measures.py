from __future__ import annotations

import numpy as np
import pytest

from layerscope.choose.labels.measures import Pairs, ScoredPairs, make_measure
from layerscope.choose.labels.probes import Neighbors, Probe, grams, stratified_folds
from layerscope.choose.labels.read import Labeled
from tests.choose.labels.support import classes, judged_pairs, scored_pairs


def pairs_of(targets: np.ndarray) -> Labeled:
    """Pairs without texts: a test gives their cosines."""
    return Labeled("pairs", ((), ()), targets)


def test_left_out_predictions_are_those_of_probes_fitted_without_the_fold() -> None:
    rng = np.random.default_rng(0)
    gram = grams(rng.normal(size=(2, 40, 12)))
    labels, weights = rng.integers(0, 3, 40), rng.uniform(0.5, 2, 40)
    goal, splits = np.eye(3)[labels], stratified_folds(labels, 5, 2, 0)
    predicted = Probe(gram, goal, weights, (0.1,)).left_out(splits)
    for layer, products in enumerate(gram.numpy() + 1):
        for split, folds in enumerate(splits):
            for fold in range(5):
                seen = folds != fold
                system = products[np.ix_(seen, seen)] + np.diag(0.1 / weights[seen])
                expected = products[np.ix_(~seen, seen)] @ np.linalg.solve(system, goal[seen])
                np.testing.assert_allclose(predicted[split, layer][~seen], expected, atol=1e-10)


def test_tested_examples_have_no_part_in_the_rest() -> None:
    """Predictions without some examples are those of a probe that never had them, whatever their
    labels."""
    rng = np.random.default_rng(0)
    labels, weights, test = rng.integers(0, 3, 30), np.ones(30), np.arange(30) % 3 == 0
    gram = grams(rng.normal(size=(2, 30, 12)))
    splits = stratified_folds(labels[~test], 4, 1, 0)
    inner, outer = Probe(gram, np.eye(3)[labels], weights).without(test, splits)
    rest = np.flatnonzero(~test)
    alone = Probe(gram[:, rest][:, :, rest], np.eye(3)[labels[rest]], weights[rest])
    np.testing.assert_allclose(inner, alone.left_out(splits), atol=1e-9)
    other = np.where(test, (labels + 1) % 3, labels)
    changed = Probe(gram, np.eye(3)[other], weights).without(test, splits)
    np.testing.assert_allclose(changed[0], inner, atol=1e-9)
    np.testing.assert_allclose(changed[1], outer, atol=1e-9)


def test_folds_hold_every_class_evenly() -> None:
    labels = np.repeat([0, 1, 2], [20, 11, 4])
    for folds in stratified_folds(labels, 5, 3, 0):
        table = np.array([np.bincount(folds[labels == k], minlength=5) for k in range(3)])
        assert (np.ptp(table, axis=1) <= 1).all()
        assert np.ptp(table.sum(0)) <= 1


def test_separable_classes_are_told_and_noise_is_not() -> None:
    labeled = classes(60)
    vectors = np.random.default_rng(0).normal(size=(2, 60, 30)).astype(np.float32)
    vectors[1, np.arange(60), labeled.targets] += 8
    items = make_measure(labeled).items(vectors)
    assert items.accuracy is not None
    assert items.accuracy[1].mean() == 1
    assert abs(items.accuracy[0].mean() - 1 / 3) < 0.2
    assert items.judged[1].mean() > 0.99
    assert abs(items.judged[0].mean() - 0.5) < 0.15


@pytest.mark.parametrize("make", [classes, scored_pairs, judged_pairs])
def test_an_undefined_layer_stays_undefined(make) -> None:
    labeled = make(30)
    vectors = np.random.default_rng(0).normal(size=(3, len(labeled.texts), 8)).astype(np.float32)
    vectors[1] = np.nan
    judged = make_measure(labeled).items(vectors).judged
    assert np.isnan(judged[1]).all()
    assert np.isfinite(judged[[0, 2]]).all()


def test_neighbors_tell_classes_apart_as_counted_by_hand() -> None:
    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(2, 14, 5)), np.array([0, 1] * 6 + [0, 2])
    gram, among = grams(vectors).numpy(), np.arange(14) != 3
    shares = Neighbors(gram, labels).separation(among, among)
    size = np.sqrt(gram.diagonal(axis1=1, axis2=2))
    cosines = gram / (size[:, :, None] * size[:, None, :])
    members = np.flatnonzero(among)
    for place, i in enumerate(members[:-1]):  # the last is alone in its class
        same = [j for j in members if j != i and labels[j] == labels[i]]
        other = [j for j in members if labels[j] != labels[i]]
        expected = [
            np.mean([[row[i, a] > row[i, b] for b in other] for a in same]) for row in cosines
        ]
        np.testing.assert_allclose(shares[:, place], expected)
    np.testing.assert_allclose(shares[:, -1], shares[:, :-1].mean(-1))


def test_chance_is_the_score_of_random_vectors() -> None:
    rng = np.random.default_rng(0)
    weights = np.ones((1, 20))
    measure = Pairs(pairs_of((np.arange(20) < 6).astype(int)))
    random = measure.score(rng.normal(size=(4000, 20)), weights).mean()
    assert measure.chance(weights)[0] == pytest.approx(random, abs=0.01)
    assert ScoredPairs(Labeled("scores", ((), ()), rng.normal(size=20))).chance(weights)[0] == 0
    assert make_measure(classes(20, 4)).chance(weights)[0] == 0.5


def test_a_class_with_one_example_does_not_break_the_probe() -> None:
    labeled = classes(31, 2)
    targets = labeled.targets.copy()
    targets[0] = 2
    single = Labeled("classification", labeled.sides, targets, ("a", "b", "c"))
    vectors = np.random.default_rng(0).normal(size=(1, 31, 8)).astype(np.float32)
    items = make_measure(single).items(vectors)
    assert np.isfinite(items.judged).all()
    assert items.accuracy is not None
    assert items.accuracy[0, 0] == 0
