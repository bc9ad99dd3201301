"""Self-consistency: views, the three questions, and the consensus."""

from __future__ import annotations

import numpy as np

from layerscope.choose.judges.consistency import (
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
from tests.choose.judges.support import CANDIDATES, agreement_of


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
        readouts = CANDIDATES.readouts[:1]
        layers = (0,)

        def vectors(self, readout, view="texts"):
            return np.eye(30, dtype=np.float32)[None]

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
