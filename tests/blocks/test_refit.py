"""The search and the refit on tiny encoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from layerscope.blocks import Encoder, Variant, refit, search
from layerscope.blocks.refit import HELD_OUT, BlockKind, find_kind
from layerscope.blocks.search import (
    Step,
    TextSet,
    choose_blocks,
    closeness,
    measure_agreement,
    shared_neighbors,
)
from tests.blocks.conftest import TEXTS, idle_block, write_tiny


def opened(folder: Path, family: str, module: Any = None) -> tuple[Encoder, Any]:
    encoder = Encoder.open(write_tiny(folder / family, family, module), "cpu")
    return encoder, find_kind(encoder)


def sums(encoder: Encoder, variant: Variant, block: int, kind: BlockKind) -> torch.Tensor:
    """The sums (tokens, D) of a block on held-out texts, text by text."""
    rows: list[torch.Tensor] = []
    place = variant.blocks.index(block) + 1
    part = Variant(variant.blocks[:place], variant.modules[:place])
    tap = kind.sum_of(part.modules[-1])
    for text in TEXTS[::HELD_OUT]:
        encoder.run(part, encoder.batches([text])[0], hooks=[lambda: tap.record(rows)])
    return torch.cat([states.reshape(-1, states.shape[-1]) for states in rows]).double()


SLOW = ("mpnet", "gpt2", "gpt_neox", "modernbert")


@pytest.mark.parametrize(
    "family", ["bert", "llama", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_a_refitted_block_comes_nearer_to_the_whole_models_state(tmp_path: Path, family: str):
    encoder, kind = opened(tmp_path, family)
    cut = encoder.variant([0, 2])
    done = refit(encoder, cut, encoder.batches(TEXTS), kind)
    assert done.variant.blocks == (0, 2)
    assert done.remaining[0] < 0.9
    goal = sums(encoder, encoder.whole, 1, kind)
    before, after = (
        float((kind.problem(sums(encoder, variant, 0, kind), goal)[1] ** 2).mean())
        for variant in (cut, done.variant)
    )
    assert after < before


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_the_whole_model_is_not_changed(tmp_path: Path, family: str):
    encoder, kind = opened(tmp_path, family)
    batches = encoder.batches(TEXTS[:20])
    before = encoder.encode(encoder.whole, batches)
    refit(encoder, encoder.variant([0, 2]), batches, kind)
    np.testing.assert_array_equal(encoder.encode(encoder.whole, batches), before)
    done = refit(encoder, encoder.whole, batches, kind)
    assert (done.remaining, done.variant) == ({}, encoder.whole)


def test_a_block_that_does_nothing_goes_first_and_costs_nothing(tmp_path: Path):
    encoder, kind = opened(tmp_path, "llama", idle_block("llama", 1))
    batches = encoder.batches(TEXTS)
    step = search(encoder, batches, 1)[0]
    assert step.removed == 1
    assert step.possible[1] == pytest.approx(2, abs=1e-5)
    done = refit(encoder, encoder.variant(step.blocks), batches, kind)
    whole = encoder.encode(encoder.whole, batches)
    np.testing.assert_allclose(encoder.encode(done.variant, batches), whole, atol=1e-5)


@pytest.mark.parametrize("queries", [0, 10])
def test_the_search_is_the_greedy_one_by_brute_force(bert: Encoder, queries: int):
    batches = bert.batches(TEXTS)
    whole = bert.encode(bert.whole, batches)
    remaining = [0, 1, 2]
    for step in search(bert, batches, 1, queries=queries):
        scores = {}
        for block in remaining:
            variant = bert.variant([k for k in remaining if k != block])
            scores[block] = closeness(whole, bert.encode(variant, batches), queries)
        assert step.possible == pytest.approx(scores, abs=1e-5)
        assert step.removed == max(scores, key=lambda block: scores[block])
        remaining.remove(step.removed)
        assert step.blocks == tuple(remaining)


def test_of_two_subsets_the_one_that_refits_better_is_taken(tmp_path: Path):
    encoder, kind = opened(tmp_path, "bert")
    searched, trial = TextSet.of(TEXTS[:40]), TextSet.of(TEXTS[40:])
    compared = encoder.batches(trial.texts)
    whole = encoder.encode(encoder.whole, compared)
    scores = {}
    for blocks in ((0, 1), (1, 2), (0, 2)):
        done = refit(encoder, encoder.variant(blocks), encoder.batches(searched.texts), kind)
        scores[blocks] = closeness(whole, encoder.encode(done.variant, compared))
    for greedy in ((0, 1), (1, 2)):  # evenly spaced are 0 and 2
        best = max((greedy, (0, 2)), key=lambda blocks: scores[blocks])
        steps = [Step(2, greedy, {})]
        assert choose_blocks(encoder, steps, 2, kind, searched, trial) == best


def test_a_block_that_must_stay_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    encoder, kind = opened(tmp_path, "bert")
    monkeypatch.setattr(encoder, "removable", lambda: [True, False, True])
    texts = TextSet.of(TEXTS)
    assert choose_blocks(encoder, [Step(0, (1, 2), {})], 2, kind, texts, texts) == (1, 2)
    assert all(1 in step.blocks for step in search(encoder, encoder.batches(TEXTS), 1))


@pytest.mark.parametrize("queries", [0, 20])
def test_agreement_is_the_correlation_of_similarities(queries: int):
    rng = np.random.default_rng(0)
    whole, other = rng.normal(size=(2, 60, 8))
    whole, other = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (whole, other))
    value, draws = measure_agreement(whole, whole, queries)
    assert value == pytest.approx(1)
    assert draws == pytest.approx(1)
    assert shared_neighbors(whole, whole, queries) == 1
    above = np.triu_indices(60, 1)
    if queries:
        pairs = [(whole[20:] @ whole[q], other[20:] @ other[q]) for q in range(20)]
    else:
        pairs = [((whole @ whole.T)[above], (other @ other.T)[above])]
    correlations = [np.corrcoef(*pair)[0, 1] for pair in pairs]
    value, draws = measure_agreement(whole, other, queries, draws=2000)
    assert value == pytest.approx(np.mean(correlations))
    cosine = (whole * other).sum(1).mean()
    assert closeness(whole, other, queries) == pytest.approx(value + cosine)
    if queries:
        assert draws.std() == pytest.approx(np.std(correlations) / 20**0.5, rel=0.1)
        # how queries resemble each other, and documents, does not count
        turned = np.concatenate([-other[:20], other[20:]])
        assert measure_agreement(whole, turned, 20)[0] == pytest.approx(-value)


def test_queries_and_documents_are_divided_in_the_same_shares():
    texts = TextSet.of([f"document {i}" for i in range(80)], [f"query {i}" for i in range(20)])
    head, rest = texts.cut(25)
    assert (head.queries, len(head)) == (5, 25)
    assert (rest.queries, len(rest)) == (15, 75)
    assert set(head.texts) | set(rest.texts) == set(texts.texts)
    assert all(text.startswith("query") for text in rest.texts[:15])
    assert (rest.first(40).queries, len(rest.first(40))) == (15, 40)
    assert rest.first(10).queries == 5
