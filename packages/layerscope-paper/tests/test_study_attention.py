"""The study of attention: known weights, and a model's own against transformers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tests.tiny import tiny_model

from layerscope.errors import LayerscopeError
from layerscope_paper.studies.attention import Attention, attention_facts, read_attention
from layerscope_paper.studies.base import STUDIES
from layerscope_paper.studies.run import study


@pytest.fixture(autouse=True, scope="module")
def with_the_study() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(STUDIES, "_things", {**STUDIES.all(), "attention": Attention()})
        yield


def test_all_attention_on_one_token() -> None:
    tokens, heads = 5, 2
    weights = torch.zeros(heads, tokens, tokens)
    weights[:, :, 0] = 1.0
    states = torch.ones(tokens, 3)
    states[0] *= 100
    facts = attention_facts(weights, states)
    assert facts["attention_on_first"] == facts["attention_on_largest"] == 1.0
    assert facts["attended_is_largest"] == 1.0
    assert facts["input_ratio"] == pytest.approx(100)
    states[0], states[3] = 1.0, 50.0  # another token is the largest now
    facts = attention_facts(weights, states)
    assert (facts["attention_on_largest"], facts["attended_is_largest"]) == (0.0, 0.0)


def test_even_causal_attention_is_the_even_share() -> None:
    tokens = 6
    weights = (
        torch.ones(tokens, tokens).tril() / torch.arange(1, tokens + 1).unsqueeze(1)
    ).unsqueeze(0)
    facts = attention_facts(
        weights, torch.randn(tokens, 4, generator=torch.Generator().manual_seed(0))
    )
    assert facts["attention_on_first"] == pytest.approx(facts["attention_if_uniform"])
    assert facts["attention_if_uniform"] == pytest.approx(
        np.mean([1 / k for k in range(2, tokens + 1)])
    )


def test_weights_and_states_are_the_models_own() -> None:
    model = tiny_model("llama")
    ids = list(range(10, 22))
    weights, states = read_attention(model, ids)
    assert len(weights) == len(states) == model.n_blocks
    for w in weights:
        assert w.shape == (4, 12, 12)
        torch.testing.assert_close(w.sum(-1), torch.ones(4, 12))
        assert float(w.triu(1).abs().max()) == 0
    with torch.no_grad():
        hidden = model.module(
            input_ids=torch.tensor([ids]), output_hidden_states=True
        ).hidden_states
    for state, expected in zip(states, hidden[:-1], strict=True):
        torch.testing.assert_close(state, expected[0], atol=1e-5, rtol=1e-4)
    # q k of the first block by hand
    block = model.module.layers[0]
    assert weights[0].shape[0] == block.self_attn.config.num_attention_heads


def test_a_study_of_two_kinds_of_models(texts: list[str]) -> None:
    run = study("attention", tiny_model("llama"), tiny_model("bert"), data=texts, prompts=4)
    table = run.table
    assert set(table["metric"]) == {
        "attention_on_largest", "attention_on_first", "attention_if_uniform", "attended_is_largest", "input_ratio",
    }  # fmt: skip
    assert (table["n"] == 4).all()
    assert table["layer"].min() == 1
    assert run.verdict[0].startswith("In short: ")
    assert run.plot() is not None


def test_a_model_without_attention_is_refused(texts: list[str]) -> None:
    with pytest.raises(LayerscopeError, match="Models without attention"):
        study("attention", tiny_model("mamba"), data=texts)
