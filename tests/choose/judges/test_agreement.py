"""Agreement with an encoder: neighbors that are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from layerscope.choose.judges.agreement import Neighborhoods, _ranks, similarities
from tests.choose.judges.support import agreement_of, planted


def test_an_encoder_agrees_with_itself_and_not_with_noise():
    vectors = planted(0.5)
    reference = Neighborhoods.of(similarities(vectors))
    assert torch.allclose(
        reference.agreement(similarities(vectors)), torch.ones(len(vectors)), atol=1e-5
    )
    noise = np.random.default_rng(1).normal(size=vectors.shape)
    assert abs(float(reference.agreement(similarities(noise)).mean())) < 0.1


def test_agreement_does_not_see_rotation_and_scale():
    vectors = planted(0.5)
    turned = 3 * vectors @ np.linalg.qr(np.random.default_rng(0).normal(size=(16, 16)))[0]
    reference = Neighborhoods.of(similarities(vectors))
    assert float(reference.agreement(similarities(turned)).mean()) > 0.999


def test_overlap_and_order_by_hand():
    """Four texts on a line of angles: the neighbors of each are known."""
    angles = np.array([0.0, 0.1, 0.3, 0.7, 1.5])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    reference = Neighborhoods.of(similarities(vectors), neighbors=1, near=2)
    swapped = np.array(
        [0.0, 0.3, 0.1, 0.7, 1.5]
    )  # text 0 now has text 2 as its nearest, and text 1 second
    other = np.stack([np.cos(swapped), np.sin(swapped)], axis=1)
    found = reference.agreement(similarities(other))
    assert found[0].item() == pytest.approx(-0.5)  # overlap 0, order reversed: (0 − 1) / 2


def test_equal_vectors_have_no_order_to_agree_with():
    """Texts that end with the same token have equal vectors in the first layer: no sort may make
    neighbors of them."""
    vectors = planted(0.5)
    reference = Neighborhoods.of(similarities(vectors))
    same = np.tile(np.random.default_rng(2).normal(size=16), (len(vectors), 1))
    found = reference.agreement(similarities(same))
    # of n − 1 equals any ten may be the nearest
    assert torch.allclose(
        found, torch.full_like(found, 0.5 * reference.count / (len(vectors) - 1)), atol=1e-5
    )
    some = same.copy()
    some[: len(vectors) // 2] = vectors[: len(vectors) // 2]
    assert float(reference.agreement(similarities(some)).mean()) < 0.5


def test_ranks_of_equals_are_shared():
    values = torch.tensor([[0.5, 0.1, 0.5, 0.9], [0.1, 0.2, 0.3, 0.4]])
    assert _ranks(values).tolist() == [[1.5, 0.0, 1.5, 3.0], [0.0, 1.0, 2.0, 3.0]]


def test_the_planted_candidate_wins_and_intervals_hold_the_score():
    scores = agreement_of(planted(0.3, seed=5))
    assert scores.best() == 4
    assert scores.values[0] < scores.values[1]
    low, high = scores.interval()
    assert (low < scores.values).all()
    assert (scores.values < high).all()
    assert scores.gain(4, 2).low > 0
