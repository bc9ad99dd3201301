from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from layerscope.choose.candidates import Candidate, allowed_blocks
from layerscope.choose.labels.read import Labeled
from layerscope.choose.labels.scores import (
    GUESSES,
    LOSES,
    LabelDecision,
    LabelEvidence,
    decide_by_labels,
    gains_in_rounds,
    gather,
    smooth_layers,
)
from layerscope.core.readout import Readout
from tests.choose.labels.support import (
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
        honest.append(np.nanmean(gains_in_rounds(evidence, first_best).over_baseline))
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
