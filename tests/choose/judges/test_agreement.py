"""Agreement with an encoder: neighbors that are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from layerscope.choose.judges.agreement import Neighborhoods, similarities
from tests.choose.judges.support import agreement_of, planted

VECTORS = planted(0.5)
REFERENCE = Neighborhoods.of(similarities(VECTORS))


def on_a_circle(*angles: float) -> np.ndarray:
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def test_an_encoder_agrees_with_itself_rotated_and_scaled_and_not_with_noise():
    rng = np.random.default_rng(1)
    turned = 3 * VECTORS @ np.linalg.qr(rng.normal(size=(16, 16)))[0]
    noise = rng.normal(size=VECTORS.shape)
    own, rotated, random = (
        float(REFERENCE.agreement(similarities(rows)).mean()) for rows in (VECTORS, turned, noise)
    )
    assert own == pytest.approx(1, abs=1e-5)
    assert rotated > 0.999
    assert abs(random) < 0.1


def test_overlap_and_order_by_hand():
    reference = Neighborhoods.of(
        similarities(on_a_circle(0.0, 0.1, 0.3, 0.7, 1.5)), neighbors=1, near=2
    )
    # text 0 now has text 2 as its nearest, and text 1 second
    agreement = reference.agreement(similarities(on_a_circle(0.0, 0.3, 0.1, 0.7, 1.5)))
    assert agreement[0].item() == pytest.approx(-0.5)  # overlap 0, order reversed: (0 − 1) / 2


def test_equal_vectors_have_no_order_to_agree_with():
    """Texts that end with the same token have equal vectors in the first layer: no sort may make
    neighbors of them."""
    same = np.tile(np.random.default_rng(2).normal(size=16), (len(VECTORS), 1))
    agreement = REFERENCE.agreement(similarities(same))
    # of n − 1 equals any ten may be the nearest
    expected = torch.full_like(agreement, 0.5 * REFERENCE.count / (len(VECTORS) - 1))
    assert torch.allclose(agreement, expected, atol=1e-5)
    same[: len(VECTORS) // 2] = VECTORS[: len(VECTORS) // 2]
    assert float(REFERENCE.agreement(similarities(same)).mean()) < 0.5


def test_the_planted_candidate_wins_and_intervals_hold_the_score():
    scores = agreement_of(planted(0.3, seed=5))
    assert scores.best() == 4
    assert scores.values[0] < scores.values[1]
    low, high = scores.interval()
    assert ((low < scores.values) & (scores.values < high)).all()
    assert scores.gain(4, 2).low > 0
