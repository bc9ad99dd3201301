from __future__ import annotations

import numpy as np
import pytest

from layerscope.choose.labels.measures import Pairs, ScoredPairs, make_measure
from layerscope.choose.labels.probes import Neighbors, Probe, grams, stratified_folds
from layerscope.core.statistics import bootstrap_weights
from layerscope.evaluation.items import ItemScores as Single
from tests.choose.labels.support import classes, judged_pairs, scored_pairs

NOWHERE = (np.arange(0), np.arange(0))


def resamples(count: int, draws: int = 7) -> tuple[np.ndarray, np.ndarray]:
    chosen = np.random.default_rng(1).integers(0, count, (draws, count))
    return chosen, np.stack([np.bincount(row, minlength=count) for row in chosen]).astype(float)


@pytest.mark.parametrize("decimals", [1, 9])
def test_weighted_scores_are_those_of_repeated_examples(decimals: int) -> None:
    rng = np.random.default_rng(0)
    cosines, gold = rng.normal(size=(3, 40)).round(decimals), rng.integers(0, 5, 40).astype(float)
    chosen, weights = resamples(40)
    wanted = [[Single("spearman", row, gold).score(draw) for draw in chosen] for row in cosines]
    np.testing.assert_allclose(
        ScoredPairs(NOWHERE, gold).score(cosines, weights), wanted, atol=1e-12
    )
    together = (gold > 2).astype(float)
    wanted = [[Single("ap", row, together).score(draw) for draw in chosen] for row in cosines]
    np.testing.assert_allclose(Pairs(NOWHERE, together).score(cosines, weights), wanted, atol=1e-12)


def test_left_out_predictions_are_those_of_probes_fitted_without_the_fold() -> None:
    rng = np.random.default_rng(0)
    vectors, labels, weights = (
        rng.normal(size=(2, 40, 12)),
        rng.integers(0, 3, 40),
        rng.uniform(0.5, 2, 40),
    )
    goal, splits = np.eye(3)[labels], stratified_folds(labels, 5, 2, 0)
    probe = Probe(grams(vectors), goal, weights, (0.1,))
    found = probe.left_out(splits)
    held = grams(vectors).numpy() + 1
    for layer in range(2):
        for split, folds in enumerate(splits):
            for fold in range(5):
                seen = folds != fold
                dual = np.linalg.solve(
                    held[layer][np.ix_(seen, seen)] + np.diag(0.1 / weights[seen]), goal[seen]
                )
                wanted = held[layer][np.ix_(~seen, seen)] @ dual
                np.testing.assert_allclose(found[split, layer][~seen], wanted, atol=1e-10)


def test_folds_hold_every_class_evenly() -> None:
    labels = np.repeat([0, 1, 2], [20, 11, 4])
    for folds in stratified_folds(labels, 5, 3, 0):
        table = np.array(
            [[((labels == k) & (folds == f)).sum() for f in range(5)] for k in range(3)]
        )
        assert (np.ptp(table, axis=1) <= 1).all()
        assert np.ptp(table.sum(0)) <= 1


def test_bootstrap_keeps_the_sizes_of_classes() -> None:
    groups = np.repeat([0, 1], [30, 2])
    weights = bootstrap_weights(32, 50, 0, groups)
    assert (weights[:, groups == 1].sum(1) == 2).all()
    assert (weights.sum(1) == 32).all()


def test_separable_classes_are_told_and_noise_is_not() -> None:
    labeled = classes(60)
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(2, 60, 30)).astype(np.float32)
    vectors[1, np.arange(60), labeled.targets] += 8
    items = make_measure(labeled).items(vectors)
    assert items.accuracy is not None
    assert items.accuracy[1].mean() == 1
    assert abs(items.accuracy[0].mean() - 1 / 3) < 0.2
    assert items.judged[1].mean() > 0.99
    assert abs(items.judged[0].mean() - 0.5) < 0.15


@pytest.mark.parametrize(
    "labeled", [classes(30), scored_pairs(30), judged_pairs(30)], ids=["classes", "scores", "pairs"]
)
def test_an_undefined_layer_stays_undefined(labeled: object) -> None:
    vectors = np.random.default_rng(0).normal(size=(3, len(labeled.texts), 8)).astype(np.float32)  # type: ignore[attr-defined]
    vectors[1] = np.nan
    items = make_measure(labeled).items(vectors)  # type: ignore[arg-type]
    assert np.isnan(items.judged[1]).all()
    assert np.isfinite(items.judged[[0, 2]]).all()


def test_what_a_round_tests_has_no_part_in_the_rest() -> None:
    """The predictions without some examples are those of a probe that never had them, whatever
    their labels."""
    rng = np.random.default_rng(0)
    vectors, labels, weights = rng.normal(size=(2, 30, 12)), rng.integers(0, 3, 30), np.ones(30)
    test, gram = np.arange(30) % 3 == 0, grams(vectors)
    splits = stratified_folds(labels[~test], 4, 1, 0)
    inner, outer = Probe(gram, np.eye(3)[labels], weights).without(test, splits)
    rest = np.flatnonzero(~test)
    alone = Probe(gram[:, rest][:, :, rest], np.eye(3)[labels[rest]], weights[rest])
    np.testing.assert_allclose(inner, alone.left_out(splits), atol=1e-9)
    other = np.where(test, (labels + 1) % 3, labels)
    changed = Probe(gram, np.eye(3)[other], weights).without(test, splits)
    np.testing.assert_allclose(changed[0], inner, atol=1e-9)
    np.testing.assert_allclose(changed[1], outer, atol=1e-9)


def test_neighbours_tell_classes_apart_as_counted_by_hand() -> None:
    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(2, 14, 5)), np.array([0, 1] * 6 + [0, 2])
    gram, among = grams(vectors).numpy(), np.arange(14) != 3
    found = Neighbors(gram, labels).separation(among, among)
    part = np.flatnonzero(among)
    size = np.sqrt(gram.diagonal(axis1=1, axis2=2))
    cosines = gram / (size[:, :, None] * size[:, None, :])
    for place, i in enumerate(part[:-1]):  # the last is alone in its class
        same = [j for j in part if j != i and labels[j] == labels[i]]
        other = [j for j in part if labels[j] != labels[i]]
        wanted = [
            np.mean([[row[i, a] > row[i, b] for b in other] for a in same]) for row in cosines
        ]
        np.testing.assert_allclose(found[:, place], wanted)
    np.testing.assert_allclose(found[:, -1], found[:, :-1].mean(-1))


def test_chance_is_what_random_vectors_score() -> None:
    rng = np.random.default_rng(0)
    together = (np.arange(20) < 6).astype(float)
    measure, every = Pairs(NOWHERE, together), np.ones((1, 20))
    assert measure.chance(every)[0] == pytest.approx(
        measure.score(rng.normal(size=(4000, 20)), every).mean(), abs=0.01
    )
    assert ScoredPairs(NOWHERE, rng.normal(size=20)).chance(every)[0] == 0
    assert make_measure(classes(20, 4)).chance(every)[0] == 0.5


def test_a_class_with_one_example_does_not_break_the_probe() -> None:
    labeled = classes(31, 2)
    targets = labeled.targets.copy()
    targets[0] = 2
    one = type(labeled)("classification", labeled.sides, targets, ("a", "b", "c"))
    vectors = np.random.default_rng(0).normal(size=(1, 31, 8)).astype(np.float32)
    items = make_measure(one).items(vectors)
    assert np.isfinite(items.judged).all()
    assert items.accuracy is not None
    assert items.accuracy[0, 0] == 0
