"""The reduction of a GPU, its kernels run on the CPU: the numbers of a CPU's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.capture.support import reduce_states
from tests.kernels import needs_emulator, use_kernels
from tests.tiny import tiny_model
from torch import Tensor, nn

from layerscope.capture import Batch, BatchReduction, Reducer, expand_sites, make_batch
from layerscope.metrics import Options
from layerscope_gpu import tokens
from layerscope_gpu.reducing import DeviceReduction
from layerscope_gpu.tokens import gram, normed, rows

IDS = [[20 + (7 * i * (n + 1)) % 180 for i in range(n)] for n in (5, 17, 9, 3)]


def padded(left: bool) -> Batch:
    """The rows as one batch; what reduces states goes by the mask, wherever the padding is."""
    batch = make_batch(IDS, 0)
    assert batch.mask is not None
    return replace(batch, mask=batch.mask.flip(1)) if left else batch


@needs_emulator
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_more_tokens_than_dimensions_at_once(
    left: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of a GPU, its kernels run on the CPU: the same numbers."""
    states = torch.randn(4, 17, 8, generator=torch.Generator().manual_seed(2)).to(dtype)
    states[1, 3] *= 50
    batch = padded(left)
    want = reduce_states(batch, [states, 2 * states + 1])
    used = []

    def centered(
        given: Tensor, mask: Tensor | None, norm: nn.Module | None, held: normed.NormCache
    ) -> normed.CenteredStates:
        used.append(given.shape)
        return normed._centered(normed._inputs(given, mask, norm, "none"))

    use_kernels(monkeypatch, normed, rows)
    monkeypatch.setattr(tokens, "centered_states", centered)
    monkeypatch.setattr("layerscope_gpu.token_measures.can_prepare_rows", lambda *_: True)
    got = reduce_states(batch, [states, 2 * states + 1], kind=DeviceReduction)
    assert len(used) == 2
    np.testing.assert_allclose(got.pooled, want.pooled, rtol=1e-5, atol=1e-6)
    for name, values in want.tokens.items():
        np.testing.assert_allclose(got.tokens[name], values, rtol=1e-5, atol=1e-4, err_msg=name)


@needs_emulator
def test_a_reducer_takes_the_means_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt_neox")
    model.module.bfloat16()
    sites = expand_sites(None, model.anatomy)
    batch = make_batch([[3, 4, 5, 6], [7, 8]], model.pad_id, model.device)
    plain, used = [], []

    def means(
        states: Tensor, mask: Tensor | None, norm: nn.Module, held: normed.NormCache
    ) -> Tensor | None:
        kind = normed._kind_of(norm, states)
        assert kind is not None
        used.append(kind)
        return normed._means(normed._inputs(states, mask, norm, kind, norm_cache=held))

    for on in (False, True):
        if on:
            use_kernels(monkeypatch, normed)
            monkeypatch.setattr(tokens, "normed_means", means)
        with Reducer(model.anatomy, sites, "applied", Options()) as reducer:
            reducer.reduction = DeviceReduction if on else BatchReduction
            plain.append(reducer.reduce(batch, model.run, token_level=False).pooled)
    assert len(used) == len(sites)
    torch.testing.assert_close(plain[1], plain[0], rtol=2e-3, atol=2e-3)


@needs_emulator
@pytest.mark.parametrize("final_norm", ["applied", "raw"])
def test_a_reducer_measures_tokens_at_once(
    final_norm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("gpt_neox")
    model.module.bfloat16()
    sites = expand_sites(None, model.anatomy)
    batch = make_batch([[3, 4, 5, 6, 9, 11, 4], [7, 8, 3, 10]], model.pad_id, model.device)
    kept, used = [], []

    def found(
        states: Tensor, mask: Tensor | None, norm: nn.Module | None, held: normed.NormCache
    ) -> normed.CenteredStates:
        kind = normed._kind_of(norm, states)
        assert kind is not None
        used.append(kind)
        return normed._centered(normed._inputs(states, mask, norm, kind, norm_cache=held))

    for on in (False, True):
        if on:
            use_kernels(monkeypatch, normed, gram)
            monkeypatch.setattr(tokens, "centered_states", found)
            monkeypatch.setattr("layerscope_gpu.token_measures.can_prepare_gram", lambda *_: True)
        with Reducer(model.anatomy, sites, final_norm, Options()) as reducer:
            reducer.reduction = DeviceReduction if on else BatchReduction
            kept.append(reducer.measure(batch, model.run))
    assert used == ["layer" if final_norm == "applied" else "none"] * len(sites)
    one, other = kept
    np.testing.assert_allclose(other.pooled, one.pooled, rtol=2e-3, atol=2e-3)
    for name, values in one.tokens.items():
        np.testing.assert_allclose(other.tokens[name], values, rtol=1e-3, atol=1e-3, err_msg=name)
