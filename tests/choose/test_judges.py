"""Judges: agreement with known neighbors, self-consistency, resampling, and labels as a judge.

The candidates are groups of texts whose vectors lie close together, hidden in more or less noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from layerscope.choose import Candidate, Scores, weigh_by_reliability
from layerscope.choose.consistency import (
    DROPPED,
    FIRST,
    SECOND,
    added_ranks,
    best_candidates,
    consensus,
    consistency_items,
    drop_words,
    make_views,
)
from layerscope.choose.judges import Neighborhoods, scores_of_items, similarities, text_weights
from layerscope.choose.label_scores import score_labels
from layerscope.choose.labels import build
from layerscope.core.readout import Readout
from layerscope.core.scores import DRAWS

DEFAULT = Readout()
OTHER = Readout("one-word", "last", "raw", "keep", "corpus")


def planted(
    noise: float, count: int = 120, groups: int = 12, width: int = 16, seed: int = 0
) -> np.ndarray:
    """Vectors (count, width) around the same group centers for every noise."""
    centers = np.random.default_rng(7).normal(size=(groups, width))
    rng = np.random.default_rng([seed, round(1000 * noise)])
    return (centers[np.arange(count) % groups] + noise * rng.normal(size=(count, width))).astype(
        np.float32
    )


@dataclass
class Planted:
    """Layers of two readouts; the lower the noise, the better the layer."""

    noises: tuple[tuple[float, ...], ...]
    readouts: tuple[Readout, ...] = (DEFAULT, OTHER)

    @property
    def layers(self) -> list[int]:
        return list(range(len(self.noises[0])))

    @property
    def candidates(self) -> list[Candidate]:
        return [
            Candidate(tuple(range(layer)), readout=readout)
            for readout in self.readouts
            for layer in self.layers
        ]

    def vectors(self, candidate: Candidate, view: str = "texts") -> np.ndarray:
        """Views differ from the texts by noise of their own, as large as the layer's."""
        seed = {"texts": 0, "dropped": 1, "first-half": 2, "second-half": 3}[view]
        noise = self.noises[self.readouts.index(candidate.readout)][candidate.layer]
        rows = planted(0.3, seed=5) + noise * planted(1.0, seed=11 * seed + candidate.layer)
        return rows.astype(np.float32)


CANDIDATES = Planted(((3.0, 1.0, 2.0), (2.0, 0.1, 0.6)))
"""The best is layer 1 of the second readout; the worst layer 0 of the first."""


def agreement_of(reference: np.ndarray | Tensor) -> Scores:
    """Score every candidate by its agreement with vectors, or with similarities (a tensor)."""
    cosines = similarities(reference) if isinstance(reference, np.ndarray) else reference
    neighborhoods = Neighborhoods.of(cosines)
    items = [
        neighborhoods.agreement(similarities(CANDIDATES.vectors(candidate))).cpu().numpy()
        for candidate in CANDIDATES.candidates
    ]
    return scores_of_items("agreement", np.stack(items), seed=0)


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


TRUTH = np.linspace(0, 1, 12)


def noisy(values: np.ndarray, error: float, draws: int = 50, seed: int = 0) -> Scores:
    noise = np.random.default_rng(seed).normal(size=(len(values), draws))
    return Scores(values, values[:, None] + error * noise)


def test_resamples_are_shares_and_seeded():
    weights = text_weights(50, seed=1)
    assert weights.shape == (DRAWS, 50)
    assert np.allclose(weights.sum(1), 1)
    assert (weights == text_weights(50, seed=1)).all()


def test_the_interval_of_a_mean_is_as_wide_as_theory_says():
    items = np.random.default_rng(0).normal(size=(1, 400))
    one_sided, doubled = (scores_of_items("test", items, 0, sides).draws for sides in (1, 2))
    assert one_sided.std() == pytest.approx(1 / 20, rel=0.15)
    assert doubled.std() == pytest.approx(2 * one_sided.std())


def test_a_judge_of_pure_noise_has_no_say():
    sure = noisy(TRUTH, 0.01)
    noise = np.random.default_rng(1).normal(size=12)
    both = weigh_by_reliability([sure, noisy(noise, 3.0)])
    assert np.allclose(both.values / both.values.std(), (TRUTH - TRUTH.mean()) / TRUTH.std())
    assert weigh_by_reliability([sure]) is sure


def test_the_source_with_more_weight_decides():
    first, second = noisy(TRUTH, 0.01), noisy(1 - TRUTH, 0.01)  # equally sure of opposite orders
    assert weigh_by_reliability([replace(first, weight=2.0), second]).best() == first.best()
    assert weigh_by_reliability([first, replace(second, weight=2.0)]).best() == second.best()


def test_judges_that_resample_differently_often_are_combined() -> None:
    both = weigh_by_reliability([noisy(TRUTH, 0.01, 300), noisy(TRUTH, 0.01, 200, seed=1)])
    assert both.draws is not None
    assert both.draws.shape == (12, 200)
    assert (np.diff(both.values) > 0).all()


def test_labels_find_the_planted_groups():
    """The same twelve groups, as classes of 120 labeled texts."""
    labeled = build("classification", [((f"text {i}",), str(i % 12)) for i in range(120)])
    order = [int(text.split()[1]) for text in labeled.texts]

    def vectors(readout):
        items = CANDIDATES.candidates
        layers = [item for item in items if item.readout.template == readout.template]
        return np.stack([CANDIDATES.vectors(item) for item in layers])[:, order]

    scores = score_labels(labeled, CANDIDATES.readouts, CANDIDATES.layers, vectors)
    assert scores.values[4] > scores.values[0] + 0.01


def test_dropping_keeps_the_order_of_the_rest():
    text = "a b c d e f g h i j"
    rng = np.random.default_rng(0)
    left = drop_words(text, rng).split()
    assert len(left) == 7
    assert left == sorted(left)
    assert (
        drop_words("word", np.random.default_rng(0)) != "word"
    )  # characters, where there are few words
    assert drop_words("x", rng) == "x"


def test_views_of_texts_are_seeded_and_of_equal_number():
    texts = [f"text number {i} with some words" for i in range(9)]
    views = make_views(texts, seed=3)
    assert set(views) == {DROPPED, FIRST, SECOND}
    assert all(len(view) == 9 for view in views.values())
    assert views == make_views(texts, seed=3)
    assert views != make_views(texts, seed=4)
    assert [f"{a} {b}" for a, b in zip(views[FIRST], views[SECOND], strict=True)] == texts


def test_equal_views_are_found_at_once():
    class Same:
        candidates = CANDIDATES.candidates[:1]

        def vectors(self, candidate, view="texts"):
            return np.eye(30, dtype=np.float32)

    items = consistency_items(Same())
    assert np.allclose(items[:2], 1)
    assert np.allclose(items[2], 0, atol=1e-4)


def test_the_least_noise_is_most_consistent():
    alone = added_ranks(consistency_items(CANDIDATES))
    assert alone.best() == 4
    assert alone.values[0] == alone.values.min()


def test_the_consensus_finds_the_planted_candidate():
    leaders = best_candidates(added_ranks(consistency_items(CANDIDATES)).values)
    assert agreement_of(consensus(CANDIDATES, leaders)).best() in (4, 5)


def test_the_best_share_has_five_at_least():
    values = np.arange(40.0)
    assert len(best_candidates(values)) == 5
    assert len(best_candidates(np.arange(1000.0))) == 30
    values[39] = np.nan
    assert 39 not in best_candidates(values)
