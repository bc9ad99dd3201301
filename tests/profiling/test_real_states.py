"""Real models: every number of a profile against an independent computation, and the valley that is
one token."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from layerscope.data import Corpus, load_corpus
from layerscope.models import LoadedModel, load, wrap
from layerscope.profiling import Profile, profile
from layerscope.profiling.run import entropy_valley
from tests.profiling.reference import PAPER, Independent, assert_agrees
from tests.profiling.support import assert_same_numbers

pytestmark = pytest.mark.real

TOKENS, VIEWS, SEED = 16, 2, 3


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    # beginnings of different lengths: most batches are padded, some texts are cut
    return Corpus.of(
        " ".join(text.split()[: 4 + 5 * i % 17])
        for i, text in enumerate(load_corpus("lee", limit=6))
    )


def remember_blocks(model: LoadedModel) -> LoadedModel:
    """A block that is given the same states and mask again returns what it computed: profiles that
    differ in what they do with the states wait for the same forward pass once. Hooks run as
    ever."""

    def remembering(own: Callable[..., Tensor]) -> Callable[..., Tensor]:
        known: dict[bytes, Tensor] = {}

        def forward(
            states: Tensor, *args: Any, attention_mask: Tensor | None = None, **kwargs: Any
        ) -> Tensor:
            digest = hashlib.sha256(repr((states.shape, attention_mask is None)).encode())
            for tensor in (states, attention_mask):
                digest.update(b"" if tensor is None else tensor.contiguous().numpy().tobytes())
            key = digest.digest()
            if key not in known:
                known[key] = own(states, *args, attention_mask=attention_mask, **kwargs)
            return known[key]

        return forward

    for block in model.anatomy.blocks:
        setattr(block, "forward", remembering(block.forward))  # noqa: B010
    return model


@pytest.fixture(scope="module")
def smollm() -> LoadedModel:
    return remember_blocks(load("smollm2-135m", device="cpu"))


@pytest.fixture(scope="module")
def part() -> LoadedModel:
    """The first 14 of its 30 blocks: the sink comes in the twelfth."""
    whole = load("smollm2-135m", device="cpu")
    del whole.module.layers[14:]
    whole.module.config.num_hidden_layers = 14
    return remember_blocks(wrap(whole.module, whole.tokenizer, name="a part of smollm2-135m"))


@pytest.fixture(scope="module")
def minilm() -> LoadedModel:
    return load("minilm-l6", device="cpu")


def profile_of(model: LoadedModel, corpus: Corpus, final_norm: str) -> Profile:
    return profile(
        model,
        corpus,
        metrics=PAPER,
        max_length=TOKENS,
        views=VIEWS,
        seed=SEED,
        final_norm=final_norm,
    )


@pytest.fixture(scope="module")
def smollm_alone(smollm: LoadedModel, corpus: Corpus) -> Independent:
    return Independent(smollm, corpus.texts, TOKENS, VIEWS, SEED)


@pytest.fixture(scope="module")
def part_alone(part: LoadedModel, corpus: Corpus) -> Independent:
    return Independent(part, corpus.texts, TOKENS, VIEWS, SEED)


@pytest.fixture(scope="module")
def minilm_alone(minilm: LoadedModel, corpus: Corpus) -> Independent:
    return Independent(minilm, corpus.texts, TOKENS, VIEWS, SEED)


@pytest.mark.slow  # quickly: tiny decoders in `test_tiny_states`, and MiniLM below
def test_the_first_half_of_smollm_equals_an_independent_computation(
    part: LoadedModel, corpus: Corpus, part_alone: Independent
) -> None:
    assert_agrees(profile_of(part, corpus, "raw").table, part_alone.table("raw"))


@pytest.mark.slow
@pytest.mark.parametrize("final_norm", ["raw", "applied", "hf"])
def test_smollm_equals_an_independent_computation(
    smollm: LoadedModel, corpus: Corpus, smollm_alone: Independent, final_norm: str
) -> None:
    assert_agrees(profile_of(smollm, corpus, final_norm).table, smollm_alone.table(final_norm))


@pytest.mark.parametrize("final_norm", ["raw", "applied", "hf"])
def test_minilm_equals_an_independent_computation(
    minilm: LoadedModel, corpus: Corpus, minilm_alone: Independent, final_norm: str
) -> None:
    assert_agrees(profile_of(minilm, corpus, final_norm).table, minilm_alone.table(final_norm))


def curve(run: Profile, metric: str, sink: str = "keep") -> np.ndarray:
    return run.curve(metric, sink=sink)["value"].to_numpy()


@pytest.mark.slow
def test_the_valley_of_smollm_is_its_sink(smollm: LoadedModel) -> None:
    corpus = load_corpus("lee", limit=5)
    metrics = ["prompt_entropy", "sink_ratio", "sink_first"]
    raw = profile(smollm, corpus, metrics=metrics, max_length=128, final_norm="raw")
    entropy = curve(raw, "prompt_entropy")
    assert len(entropy) == 31
    assert entropy[11] > 3.8
    assert entropy[12] < 1.7
    assert curve(raw, "sink_ratio")[11] < 3
    assert curve(raw, "sink_ratio")[12] > 100
    assert curve(raw, "sink_first")[12] == 1
    assert (curve(raw, "prompt_entropy", "drop") > 3.3).all()
    prompts = raw.prompts[raw.prompts["layer"] == 12]
    assert (prompts["sink_position"] == 0).all()
    assert (prompts["sink_ratio"] > 100).all()
    valley = entropy_valley(raw.table)
    assert valley is not None
    assert valley.is_sink is True
    assert valley.layer == 12
    assert "It is the sink (token 0" in valley.sentence()

    applied = profile(smollm, corpus, metrics=metrics, max_length=128, final_norm="applied")
    assert (curve(applied, "prompt_entropy") > 3.3).all()
    assert entropy_valley(applied.table) is None
    np.testing.assert_allclose(curve(applied, "sink_ratio"), curve(raw, "sink_ratio"), rtol=1e-5)


@pytest.mark.slow
def test_batches_and_order_do_not_matter_on_a_real_model(minilm: LoadedModel) -> None:
    texts = list(load_corpus("lee", limit=16))
    options = {"max_length": 40, "views": 2}
    first = profile(minilm, texts, batch_size=1, **options)
    for size in (7, 64):
        assert_same_numbers(profile(minilm, texts, batch_size=size, **options).table, first.table)
    assert_same_numbers(profile(minilm, texts[::-1], batch_size=7, **options).table, first.table)
