"""What is kept of a batch: right with any padding, loud about NaN, and never more than a few states
at a time."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor

from layerscope.capture import (
    Batch,
    BatchReduction,
    FinalNorm,
    Reduced,
    Reducer,
    expand_sites,
    make_batch,
)
from layerscope.errors import NonFiniteStatesError
from layerscope.metrics import Options
from layerscope.metrics.tokens import token_sum
from layerscope.models import LoadedModel, wrap
from tests.capture.support import hooks_on, reduce_states
from tests.metrics import reference
from tests.tiny import GENERIC_FAMILIES, TINY_FAMILIES, tiny_model, tiny_tokenizer

EVERY = (*TINY_FAMILIES, *GENERIC_FAMILIES)
IDS = [[20 + (7 * i * (n + 1)) % 180 for i in range(n)] for n in (5, 17, 9, 3)]


def padded(left: bool) -> Batch:
    """The rows as one batch; what reduces states goes by the mask, wherever the padding is."""
    batch = make_batch(IDS, 0)
    assert batch.mask is not None
    return replace(batch, mask=batch.mask.flip(1)) if left else batch


def read(model: LoadedModel, ids: list[list[int]], pad: int | None = None) -> Reduced:
    sites = expand_sites(None, model.anatomy)
    batch = make_batch(ids, model.pad_id if pad is None else pad)
    with Reducer(model.anatomy, sites, "applied", Options()) as reducer:
        return reducer.measure(batch, lambda b: model.run(b), token_level=True)


@pytest.mark.parametrize("family", EVERY)
def test_padding_enters_no_number(family: str) -> None:
    model = tiny_model(family)
    each_alone = [read(model, [row]) for row in IDS]
    together = read(model, IDS)
    for i, alone in enumerate(each_alone):
        np.testing.assert_allclose(together.pooled[:, i], alone.pooled[:, 0], rtol=2e-4, atol=2e-5)
        for name, values in together.tokens.items():
            np.testing.assert_allclose(
                values[:, i], alone.tokens[name][:, 0], rtol=2e-4, atol=2e-5, err_msg=name
            )


@pytest.mark.parametrize("width", [16, 4], ids=["fewer tokens than dimensions", "more tokens"])
@pytest.mark.parametrize("rubbish", [1e30, float("nan"), float("inf")])
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_rubbish_at_padding_changes_nothing(width: int, rubbish: float, left: bool) -> None:
    batch = padded(left)
    assert batch.mask is not None
    states = torch.randn(4, 17, width, generator=torch.Generator().manual_seed(1))
    clean, dirty = (
        states.masked_fill(~batch.mask.unsqueeze(-1), value) for value in (0.0, rubbish)
    )
    one, other = reduce_states(batch, [clean]), reduce_states(batch, [dirty])
    assert np.array_equal(one.pooled, other.pooled)
    for name in one.tokens:
        assert np.array_equal(one.tokens[name], other.tokens[name], equal_nan=True), name


def test_numbers_are_those_of_the_formulas() -> None:
    states = torch.randn(4, 17, 16, generator=torch.Generator().manual_seed(2))
    states[1, 3] *= 50
    batch = make_batch(IDS, 0)
    kept = reduce_states(batch, [states])
    for i, row in enumerate(IDS):
        tokens = states[i, : len(row)].double().numpy()
        at, ratio = reference.sink(tokens)
        want = {
            "prompt_entropy.keep": reference.prompt_entropy(tokens),
            "prompt_entropy.drop": reference.prompt_entropy(tokens, drop=at),
            "curvature.keep": reference.curvature(tokens),
            "curvature.drop": reference.curvature(tokens, drop=at),
            "flat_differences": 0,
            "sink_ratio.keep": ratio,
            "sink_position": at,
        }
        assert {k: v[0, i] for k, v in kept.tokens.items()} == pytest.approx(
            want, rel=1e-6, nan_ok=True
        )
        np.testing.assert_allclose(kept.pooled[0, i], tokens.mean(0), rtol=1e-6, atol=1e-7)
    assert kept.tokens["sink_position"][0, 1] == 3
    assert kept.pooled.dtype == np.float32


def test_the_sink_is_found_before_the_final_norm_hides_it() -> None:
    model = tiny_model("llama")
    found = read(model, IDS)
    sites = expand_sites(None, model.anatomy)
    with Reducer(model.anatomy, sites, "raw", Options()) as reducer:
        raw = reducer.measure(make_batch(IDS, 0), lambda b: model.run(b), token_level=True)
    for name in ("sink_ratio.keep", "sink_position"):
        np.testing.assert_allclose(found.tokens[name], raw.tokens[name], rtol=1e-5)
    assert not np.allclose(
        found.tokens["prompt_entropy.keep"],
        raw.tokens["prompt_entropy.keep"],
        rtol=1e-3,
        equal_nan=True,
    )


@pytest.mark.parametrize(
    ("value", "word"), [(float("nan"), "NaN"), (float("inf"), "infinite values")]
)
def test_states_that_are_not_finite_name_the_site(value: float, word: str) -> None:
    good, bad = torch.ones(4, 17, 8), torch.ones(4, 17, 8)
    bad[2, 1, 0] = value
    with pytest.raises(
        NonFiniteStatesError,
        match=rf"{word} in the states at block\.1 \(layer 2, float32\) for 1 of 4 texts",
    ):
        reduce_states(make_batch(IDS, 0), [good, bad])
    with pytest.raises(NonFiniteStatesError, match=r"float16\).*use dtype='bfloat16' or 'float32'"):
        reduce_states(make_batch(IDS, 0), [good.half(), bad.half()])


def _llama(blocks: int) -> LoadedModel:
    config = hf.LlamaConfig(
        vocab_size=262,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=blocks,
        num_attention_heads=2,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    return wrap(hf.LlamaModel(config).eval(), tiny_tokenizer())


def _most_alive(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """The most tensors of a state's size alive when any site's states are summed, and how many
    outlived the next site's."""
    batch = make_batch(
        [[30 + i] * (19 - i) for i in range(3)], 0
    )  # 3 x 19 x 24: no other tensor has this size
    size = 3 * 19 * 24
    gc.collect()
    alive: list[int] = []
    seen: list[weakref.ref[Tensor]] = []
    outlived: list[int] = []

    def watched(state: Tensor, mask: Tensor | None) -> Tensor:
        outlived.append(sum(ref() is not None for ref in seen[:-1]))
        seen.append(weakref.ref(state))
        alive.append(sum(type(x) is Tensor and x.numel() == size for x in gc.get_objects()))
        return token_sum(state, mask)

    monkeypatch.setattr("layerscope.capture.reduce.token_sum", watched)
    with Reducer(model.anatomy, expand_sites(None, model.anatomy), "applied", Options()) as reducer:
        reducer.measure(batch, lambda b: model.run(b), token_level=True)
    assert len(alive) == model.n_blocks + 1
    return max(alive), max(outlived)


def test_memory_does_not_grow_with_the_number_of_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    few, few_old = _most_alive(_llama(4), monkeypatch)
    monkeypatch.undo()
    many, many_old = _most_alive(_llama(16), monkeypatch)
    assert few_old == many_old == 0
    assert 1 <= few == many <= 8


@pytest.mark.parametrize("final_norm", ["applied", "raw"])
@pytest.mark.parametrize("token_level", [True, False], ids=["tokens", "means"])
def test_each_core_reduces_some_texts(
    final_norm: FinalNorm, token_level: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, parts = tiny_model("llama"), []
    own = BatchReduction.reduce_texts

    def watched(self: BatchReduction, raw: Tensor, *rest: Any) -> Any:
        parts.append((len(raw), torch.get_num_threads()))
        return own(self, raw, *rest)

    monkeypatch.setattr(BatchReduction, "reduce_texts", watched)
    sites, batch = expand_sites(None, model.anatomy), make_batch([*IDS, *IDS[:3]], 0)
    found = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            with Reducer(model.anatomy, sites, final_norm, Options()) as reducer:
                found.append(
                    reducer.measure(batch, lambda b: model.run(b), token_level=token_level)
                )
        finally:
            torch.set_num_threads(1)
    assert sorted(parts) == sorted([(7, 1)] * len(sites) + [(3, 1), (2, 1), (2, 1)] * len(sites))
    np.testing.assert_allclose(found[1].pooled, found[0].pooled, rtol=1e-5, atol=1e-6)
    assert list(found[1].tokens) == list(found[0].tokens)
    assert bool(found[0].tokens) == token_level
    for name, values in found[0].tokens.items():
        np.testing.assert_allclose(
            found[1].tokens[name], values, rtol=1e-5, atol=1e-6, err_msg=name
        )


def test_an_error_in_a_batch_changes_nothing_for_the_next() -> None:
    model = tiny_model("llama")
    with Reducer(model.anatomy, expand_sites(None, model.anatomy), "applied", Options()) as reducer:

        def broken(b: Batch) -> None:
            model.run(Batch(b.input_ids + 10_000, b.mask, b.lengths))

        with pytest.raises(IndexError):
            reducer.measure(make_batch(IDS, 0), broken)
        after = reducer.measure(make_batch(IDS, 0), lambda b: model.run(b))
    assert np.array_equal(after.pooled, read(model, IDS).pooled)
    assert hooks_on(model.module) == 0
