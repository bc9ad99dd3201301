"""The search and the refit on tiny encoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from layerscope.blocks import Encoder, refit, search
from layerscope.blocks.agreement import (
    TextSet,
    closeness,
    measure_agreement,
    shared_neighbors,
)
from layerscope.blocks.kinds import find_kind
from layerscope.blocks.refit import HELD_OUT
from layerscope.blocks.search import Step, choose_blocks
from tests.blocks.conftest import TEXTS, idle_block, write_tiny


def opened(folder: Path, family: str, module: Any = None) -> tuple[Encoder, Any]:
    encoder = Encoder.open(write_tiny(folder / family, family, module), "cpu")
    return encoder, find_kind(encoder)


def sums(encoder: Encoder, variant: Any, block: int, kind: Any, texts: list[str]) -> np.ndarray:
    """The sums (tokens, D) of a block, text by text, in float64."""
    found = []
    for text in texts:
        taken: list[torch.Tensor] = []
        batch = encoder.batches([text])[0]
        place = variant.blocks.index(block)
        part = type(variant)(variant.blocks[: place + 1], variant.modules[: place + 1])
        encoder.run(part, batch, hooks=[lambda: kind.sum_of(part.modules[-1]).record(taken)])  # noqa: B023
        found.append(taken[0].reshape(-1, taken[0].shape[-1]))
    return torch.cat(found).double().numpy()


REFITTED = [
    "bert",
    "llama",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("mpnet", "gpt2", "gpt_neox", "modernbert")
    ),
]


@pytest.mark.parametrize("family", REFITTED)
def test_a_refitted_block_comes_nearer_to_the_whole_models_state(tmp_path: Path, family: str):
    encoder, kind = opened(tmp_path, family)
    batches = encoder.batches(TEXTS)
    cut = encoder.variant([0, 2])
    done = refit(encoder, cut, batches, kind)
    assert done.variant.blocks == (0, 2)
    assert done.remaining[0] < 0.9
    tested = [text for i, text in enumerate(TEXTS) if i % HELD_OUT == 0]
    goal = sums(encoder, encoder.whole, 1, kind, tested)
    before, after = (sums(encoder, one, 0, kind, tested) for one in (cut, done.variant))

    def error(given: np.ndarray) -> float:
        problem = kind.problem(torch.tensor(given), torch.tensor(goal))
        return float((problem.residual**2).mean())

    assert error(after) < error(before)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_the_whole_model_is_not_changed(tmp_path: Path, family: str):
    encoder, kind = opened(tmp_path, family)
    batches = encoder.batches(TEXTS[:20])
    before = encoder.encode(encoder.whole, batches)
    refit(encoder, encoder.variant([0, 2]), batches, kind)
    np.testing.assert_array_equal(encoder.encode(encoder.whole, batches), before)
    done = refit(encoder, encoder.whole, batches, kind)
    assert done.remaining == {}
    assert done.variant == encoder.whole


def test_a_block_that_does_nothing_goes_first_and_costs_nothing(tmp_path: Path):
    encoder, kind = opened(tmp_path, "llama", idle_block("llama", 1))
    batches = encoder.batches(TEXTS)
    steps = search(encoder, batches, 1)
    assert steps[0].removed == 1
    assert steps[0].possible[1] == pytest.approx(2, abs=1e-5)
    done = refit(encoder, encoder.variant(steps[0].blocks), batches, kind)
    np.testing.assert_allclose(
        encoder.encode(done.variant, batches), encoder.encode(encoder.whole, batches), atol=1e-5
    )


def test_the_search_is_the_greedy_one_by_brute_force(bert: Encoder):
    batches = bert.batches(TEXTS)
    steps = search(bert, batches, 1)
    whole = bert.encode(bert.whole, batches)
    kept = [0, 1, 2]
    for step in steps:
        scores = {
            block: closeness(
                whole, bert.encode(bert.variant([k for k in kept if k != block]), batches)
            )
            for block in kept
        }
        assert step.possible == pytest.approx(scores, abs=1e-5)
        assert step.removed == max(scores, key=lambda block: scores[block])
        kept.remove(step.removed)
        assert step.blocks == tuple(kept)


def test_of_two_subsets_the_one_that_refits_better_is_taken(tmp_path: Path):
    encoder, kind = opened(tmp_path, "bert")
    searched, trial = TextSet.of(TEXTS[:40]), TextSet.of(TEXTS[40:])
    whole = encoder.encode(encoder.whole, encoder.batches(trial.texts))
    scores = {}
    for blocks in ((0, 1), (1, 2), (0, 2)):
        variant = refit(encoder, encoder.variant(blocks), encoder.batches(searched.texts), kind)
        vectors = encoder.encode(variant.variant, encoder.batches(trial.texts))
        scores[blocks] = closeness(whole, vectors)
    for greedy in ((0, 1), (1, 2)):  # evenly spaced are 0 and 2
        steps = [Step(2, greedy, {})]
        best = max((greedy, (0, 2)), key=lambda blocks: scores[blocks])
        assert choose_blocks(encoder, steps, 2, kind, searched, trial) == best


def test_a_block_that_must_stay_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    encoder, kind = opened(tmp_path, "bert")
    monkeypatch.setattr(encoder, "removable", lambda: [True, False, True])
    steps = [Step(0, (1, 2), {})]
    texts = TextSet.of(TEXTS)
    assert choose_blocks(encoder, steps, 2, kind, texts, texts) == (1, 2)
    assert all(1 in step.blocks for step in search(encoder, encoder.batches(TEXTS), 1))


def test_agreement_of_equal_and_of_unrelated_vectors():
    rng = np.random.default_rng(0)
    whole, other = (rng.normal(size=(60, 8)) for _ in range(2))
    whole, other = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (whole, other))
    value, draws = measure_agreement(whole, whole)
    assert value == pytest.approx(1)
    assert draws == pytest.approx(1)
    assert shared_neighbors(whole, whole) == 1
    assert abs(measure_agreement(whole, other)[0]) < 0.2
    above = np.triu_indices(60, 1)
    expected = np.corrcoef((whole @ whole.T)[above], (other @ other.T)[above])[0, 1]
    assert measure_agreement(whole, other)[0] == pytest.approx(expected)


def test_rankings_are_compared_query_by_query():
    rng = np.random.default_rng(0)
    whole, other = (rng.normal(size=(60, 8)) for _ in range(2))
    whole, other = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (whole, other))
    value, draws = measure_agreement(whole, whole, 20)
    assert value == pytest.approx(1)
    assert draws == pytest.approx(1)
    assert shared_neighbors(whole, whole, 20) == 1
    expected = [np.corrcoef(whole[20:] @ whole[q], other[20:] @ other[q])[0, 1] for q in range(20)]
    value, draws = measure_agreement(whole, other, 20, draws=2000)
    assert value == pytest.approx(np.mean(expected))
    assert draws.std() == pytest.approx(np.std(expected) / 20**0.5, rel=0.1)
    cosine = (whole * other).sum(1).mean()
    assert closeness(whole, other, 20) == pytest.approx(np.mean(expected) + cosine)
    # how queries resemble each other, and documents, does not count
    turned = other.copy()
    turned[:20] *= -1
    assert measure_agreement(whole, turned, 20)[0] == pytest.approx(-np.mean(expected))


def test_queries_and_documents_are_divided_in_the_same_shares():
    texts = TextSet.of([f"document {i}" for i in range(80)], [f"query {i}" for i in range(20)])
    first, rest = texts.cut(25)
    assert (first.queries, len(first)) == (5, 25)
    assert (rest.queries, len(rest)) == (15, 75)
    assert set(first.texts) | set(rest.texts) == set(texts.texts)
    assert all(text.startswith("query") for text in rest.texts[:15])
    some = rest.first(40)
    assert (some.queries, len(some)) == (15, 40)
    assert rest.first(10).queries == 5


def test_the_search_with_queries_is_the_greedy_one_by_brute_force(bert: Encoder):
    batches = bert.batches(TEXTS)
    steps = search(bert, batches, 2, queries=10)
    whole = bert.encode(bert.whole, batches)
    scores = {
        block: closeness(
            whole, bert.encode(bert.variant([k for k in range(3) if k != block]), batches), 10
        )
        for block in range(3)
    }
    assert steps[0].possible == pytest.approx(scores, abs=1e-5)
