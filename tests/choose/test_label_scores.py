from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from layerscope.choose.candidates import Candidate, allowed_blocks
from layerscope.choose.label_choice import GUESSES, LOSES, LabelDecision, decide_by_labels
from layerscope.choose.label_scores import (
    LabelEvidence,
    LabelMeasure,
    Probe,
    gather,
    grams,
    neighbor_order,
    neighbor_separation,
    smooth_layers,
    stratified_folds,
)
from layerscope.choose.labels import Labeled
from layerscope.core.readout import Readout
from tests.choose.label_support import (
    LAYERS,
    READOUTS,
    classes,
    judged_pairs,
    planted,
    scored_pairs,
)

GOOD = Readout("plain", "last", "raw", "keep", "none")
KINDS = pytest.mark.parametrize("make", [classes, scored_pairs, judged_pairs])


def evidence_of(
    labeled: Labeled, readout: Readout | None, seed: int = 0, layer: int = 4, strength: float = 3.0
) -> LabelEvidence:
    return gather(labeled, READOUTS, LAYERS, planted(labeled, readout, layer, strength, seed))


@cache
def evidence_of_nothing(make: Callable[[int], Labeled], seed: int) -> LabelEvidence:
    """Labels that mean nothing to any layer."""
    return evidence_of(make(64), None, seed)


def decided(
    evidence: LabelEvidence, max_blocks: float | None = None, tolerance: float = 0.0
) -> tuple[LabelDecision, Candidate]:
    """The decision and the candidate; the tolerance is in points."""
    budget = None if max_blocks is None else allowed_blocks(max_blocks, LAYERS[-1]) / LAYERS[-1]
    made = decide_by_labels(evidence, evidence.scores(draws=120), budget, tolerance / 100)
    return made, made.decision.rule.candidates[made.decision.chosen]


@KINDS
def test_the_layer_and_readout_that_carry_the_labels_are_found(
    make: Callable[[int], Labeled],
) -> None:
    made, chosen = decided(evidence_of(make(64), GOOD))
    decision, gain = made.decision, made.decision.claim.gain
    assert not decision.weak
    assert chosen.readout == GOOD
    assert chosen.layer in (3, 4, 5)
    assert 0 < gain.low < gain.value < gain.high
    assert decision.claim.risk == 0
    assert made.gain_layer.value > 0.1
    assert made.gain_layer.value + made.gain_readout.value == pytest.approx(gain.value)
    assert chosen.layer in decision.tied_layers
    assert decision.tied.sum() < 8


@KINDS
def test_labels_that_mean_nothing_leave_the_reference(make: Callable[[int], Labeled]) -> None:
    kept, tied = 0, []
    for seed in range(4):
        decision = decided(evidence_of_nothing(make, seed))[0].decision
        kept += decision.chosen == decision.baseline
        tied.append(decision.tied.mean())
        if decision.chosen == decision.baseline:
            gain, risk = decision.claim.gain, decision.claim.risk
            assert (gain.value, gain.low, gain.high, risk) == (0, 0, 0, 0)
            # the baseline itself scored best, or the best was too weak
            at_best = decision.picked == decision.baseline
            assert decision.weak in ([""] if at_best else [GUESSES, LOSES])
    assert kept >= 3
    assert (
        np.mean(tied) > 0.6
    )  # over 25 seeds 0.94, 0.92 and 0.74: the draws of average precision are too narrow at 64 pairs


def first_best(values: np.ndarray) -> np.ndarray:
    return values.argmax(axis=0)


@KINDS
def test_the_gain_is_not_that_of_a_lucky_winner(make: Callable[[int], Labeled]) -> None:
    """With nothing to find, the best of all candidates looks good, and its gain on examples left
    out is about nothing."""
    apparent, honest = [], []
    for seed in range(6):
        evidence = evidence_of_nothing(make, seed)
        scores = evidence.scores(draws=60)
        best = evidence.smooth(scores).best()
        apparent.append(scores.values[best] - scores.values[evidence.baseline])
        honest.append(np.nanmean(evidence.gains_in_rounds(first_best)[0]))
    assert np.mean(apparent) > 0.1
    assert abs(np.mean(honest)) < 0.5 * np.mean(apparent)


def test_a_bound_bounds_the_layer_and_a_tolerance_takes_an_earlier_one() -> None:
    evidence = evidence_of(scored_pairs(64), GOOD)
    made, best = decided(evidence)
    assert best.readout == GOOD
    _, before = decided(evidence, max_blocks=(best.layer - 1) / 8)
    assert before.layer <= best.layer - 1
    values, place = made.decision.expected.values, made.decision.chosen
    behind = float(values[place] - values[place - 1])
    _, early = decided(evidence, tolerance=100 * behind + 0.1)
    assert early.layer < best.layer


def test_a_bound_that_leaves_the_baseline_out_never_answers_with_it() -> None:
    evidence = evidence_of(scored_pairs(64), None)
    made, chosen = decided(evidence, max_blocks=0.25)
    assert chosen.layer <= 2
    assert not made.decision.weak


def test_undefined_candidates_are_never_chosen() -> None:
    labeled = scored_pairs(64)
    read = planted(labeled, GOOD)

    def broken(readout: Readout) -> np.ndarray:
        vectors = read(readout)
        vectors[0] = np.nan
        if readout == GOOD:
            vectors[4] = np.nan
        return vectors

    made, chosen = decided(gather(labeled, READOUTS, LAYERS, broken))
    assert np.isnan(made.decision.expected.values[READOUTS.index(GOOD) * len(LAYERS) + 4])
    assert chosen.readout == GOOD
    assert chosen.layer in (3, 5)
    assert not made.decision.tied[:: len(LAYERS)].any()


def test_smoothing_keeps_constants_and_lowers_lone_peaks() -> None:
    flat = np.full((1, 9, 1), 0.4)
    np.testing.assert_allclose(smooth_layers(flat, 1.0), flat)
    peak = flat.copy()
    peak[0, 4] = 0.9
    assert 0.4 < smooth_layers(peak, 1.0)[0, 4, 0] < 0.7
    peak[0, 4] = np.nan
    found = smooth_layers(peak, 1.0)[0, :, 0]
    assert np.isnan(found[4])
    np.testing.assert_allclose(np.delete(found, 4), 0.4)


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
    items = LabelMeasure(labeled).items(vectors)
    assert items.accuracy is not None
    assert items.accuracy[1].mean() == 1
    assert abs(items.accuracy[0].mean() - 1 / 3) < 0.2
    assert items.judged[1].mean() > 0.99
    assert abs(items.judged[0].mean() - 0.5) < 0.15


@KINDS
def test_an_undefined_layer_stays_undefined(make: Callable[[int], Labeled]) -> None:
    labeled = make(30)
    vectors = np.random.default_rng(0).normal(size=(3, len(labeled.texts), 8)).astype(np.float32)
    vectors[1] = np.nan
    judged = LabelMeasure(labeled).items(vectors).judged
    assert np.isnan(judged[1]).all()
    assert np.isfinite(judged[[0, 2]]).all()


def test_neighbors_tell_classes_apart_as_counted_by_hand() -> None:
    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(2, 14, 5)), np.array([0, 1] * 6 + [0, 2])
    gram, among = grams(vectors).numpy(), np.arange(14) != 3
    shares = neighbor_separation(neighbor_order(gram), labels, among, among)
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
    measure = LabelMeasure(pairs_of((np.arange(20) < 6).astype(int)))
    random = measure.score(rng.normal(size=(4000, 20)), weights).mean()
    assert measure.chance(weights)[0] == pytest.approx(random, abs=0.01)
    assert LabelMeasure(Labeled("scores", ((), ()), rng.normal(size=20))).chance(weights)[0] == 0
    assert LabelMeasure(classes(20, 4)).chance(weights)[0] == 0.5


def test_a_class_with_one_example_does_not_break_the_probe() -> None:
    labeled = classes(31, 2)
    targets = labeled.targets.copy()
    targets[0] = 2
    single = Labeled("classification", labeled.sides, targets, ("a", "b", "c"))
    vectors = np.random.default_rng(0).normal(size=(1, 31, 8)).astype(np.float32)
    items = LabelMeasure(single).items(vectors)
    assert np.isfinite(items.judged).all()
    assert items.accuracy is not None
    assert items.accuracy[0, 0] == 0
