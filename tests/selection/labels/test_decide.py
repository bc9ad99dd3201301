from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from layerscope.core.candidates import ScoredCandidates
from layerscope.core.readout import Readout
from layerscope.errors import LayerscopeError
from layerscope.selection.choice import Choice
from layerscope.selection.labels.decide import (
    LabelEvidence,
    decide,
    gains_in_rounds,
    gather,
    score_candidates,
    smooth,
    smooth_layers,
)
from layerscope.selection.labels.read import Labeled
from tests.selection.labels.support import (
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


def decided(evidence: LabelEvidence, **options: float) -> tuple[Choice, ScoredCandidates]:
    scored = score_candidates(evidence, draws=120)
    return replace(decide(evidence, scored, **options), layers=LAYERS[-1]), smooth(scored)


@KINDS
def test_the_layer_and_readout_that_carry_the_labels_are_found(
    make: Callable[[int], Labeled],
) -> None:
    found, _ = decided(evidence_of(make(64), GOOD))
    assert not found.abstained
    assert found.readout == GOOD.name
    assert found.layer in (3, 4, 5)
    assert found.gain is not None
    assert 0 < found.gain.low < found.gain.value < found.gain.high
    assert found.risk_of_loss == 0
    assert found.gain_layer is not None
    assert found.gain_readout is not None
    assert found.gain_layer.value > 10
    assert found.gain_layer.value + found.gain_readout.value == pytest.approx(found.gain.value)
    assert found.layer in found.tied
    assert found.extra["tied_candidates"] < 8


@KINDS
def test_labels_that_mean_nothing_leave_the_reference(make: Callable[[int], Labeled]) -> None:
    kept, tied = 0, []
    for seed in range(4):
        evidence = evidence_of_nothing(make, seed)
        found, _ = decided(evidence)
        kept += found.is_default
        tied.append(found.table["tied"].mean())
        if found.is_default:
            assert (found.expected_gain, found.ci_low, found.ci_high, found.risk_of_loss) == (
                0,
                0,
                0,
                0,
            )
            at_best = (
                found.extra["at"] == found.extra["best"]
            )  # the reference itself scored best, or the best was too weak
            assert found.extra["weak"] in ([""] if at_best else ["chance", "loss"])
    assert kept >= 3
    assert (
        np.mean(tied) > 0.6
    )  # over 25 seeds 0.94, 0.92 and 0.74: the draws of average precision are too narrow at 64 pairs


def first_best(value: np.ndarray) -> tuple[int, int]:
    readout, layer = np.unravel_index(int(np.nanargmax(value)), value.shape)
    return int(readout), int(layer)


@KINDS
def test_the_gain_is_not_that_of_a_lucky_winner(make: Callable[[int], Labeled]) -> None:
    """With nothing to find, the best of all candidates looks good, and its gain on examples left
    out is about nothing."""
    apparent, honest = [], []
    for seed in range(6):
        evidence = evidence_of_nothing(make, seed)
        scored = score_candidates(evidence, draws=60)
        best = first_best(smooth(scored).score)
        apparent.append(scored.score[best] - scored.score[evidence.reference])
        honest.append(np.nanmean(gains_in_rounds(evidence, first_best).over_reference))
    assert np.mean(apparent) > 0.1
    assert abs(np.mean(honest)) < 0.5 * np.mean(apparent)


def test_a_bound_bounds_the_layer_and_a_tolerance_takes_an_earlier_one() -> None:
    evidence = evidence_of(scored_pairs(64), GOOD)
    best, smoothed = decided(evidence)
    readout, layer = best.extra["at"]
    assert READOUTS[readout] == GOOD
    before, _ = decided(evidence, max_blocks=(layer - 1) / 8, tolerance=0.0)
    assert before.layer <= layer - 1
    behind = float(smoothed.score[readout, layer] - smoothed.score[readout, layer - 1])
    early, _ = decided(evidence, tolerance=100 * behind + 0.1)
    assert early.layer < layer
    same, _ = decided(evidence, tolerance=0.0)
    assert same == best


def test_a_bound_that_leaves_the_reference_out_never_answers_with_it() -> None:
    evidence = evidence_of(scored_pairs(64), None)
    found, _ = decided(evidence, max_blocks=0.25)
    assert found.layer <= 2
    assert not found.abstained


@pytest.mark.parametrize("max_blocks", [0, -1, 1.5])
def test_a_bound_is_a_share(max_blocks: float) -> None:
    with pytest.raises(LayerscopeError, match="share of the blocks"):
        decided(evidence_of(scored_pairs(20), None), max_blocks=max_blocks)


def test_undefined_candidates_are_never_chosen() -> None:
    labeled = scored_pairs(64)
    read = planted(labeled, GOOD)

    def broken(readout: Readout) -> np.ndarray:
        vectors = read(readout)
        vectors[0] = np.nan
        if readout == GOOD:
            vectors[4] = np.nan
        return vectors

    found, smoothed = decided(gather(labeled, READOUTS, LAYERS, broken))
    assert np.isnan(smoothed.score[READOUTS.index(GOOD), 4])
    assert found.readout == GOOD.name
    assert found.layer in (3, 5)
    assert not found.table.loc[found.table["layer"] == 0, "tied"].any()


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
