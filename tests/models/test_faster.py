"""A model on a GPU with layerscope-gpu: passes use its kernels, to the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from layerscope.capture import Reducer, expand_sites, make_batch
from layerscope.metrics.vectors import Options
from layerscope.models import modules
from layerscope_gpu.passes import blocks, norms
from tests.kernels import needs_emulator, use_kernels
from tests.tiny import tiny_model


@needs_emulator
def test_states_are_read_under_hooks_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt_neox")
    model.module.bfloat16()
    use_kernels(monkeypatch, norms)
    monkeypatch.setattr(norms, "_fits", norms._shapes_fit)
    monkeypatch.setattr(
        norms, "_is_same", lambda *_: True
    )  # of the CPU's norms, not all bits are the same
    batch = make_batch([[3, 4, 5, 6], [7, 8, 9, 3]], model.pad_id, model.device)
    kernel, calls, found = norms.sum_and_norms, [], []
    monkeypatch.setattr(norms, "sum_and_norms", lambda *given: calls.append(1) or kernel(*given))

    def forward(batch: Any) -> Any:
        with norms.fast_norms(), blocks.fast_blocks(model.module):
            return model.run(batch)

    for _ in range(2):
        with Reducer(model.anatomy, expand_sites(None, model.anatomy), "raw", Options()) as reducer:
            found.append(reducer.reduce(batch, forward, token_level=False).pooled)
        blocks.try_fast_blocks(model.module, lambda: modules.first(forward(batch)))
    assert calls
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


@needs_emulator
def test_a_pass_is_done_with_them_where_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = tiny_model("gpt_neox").module.bfloat16()
    ids = torch.arange(3, 15).view(2, 6)
    want = modules.run(module, ids).last_hidden_state
    kernel, calls = norms.layer_norm, []
    monkeypatch.setattr(norms, "_fits", norms._shapes_fit)
    monkeypatch.setattr(norms, "_is_same", lambda *_: True)
    monkeypatch.setattr(norms, "layer_norm", lambda *given: calls.append(1) or kernel(*given))
    assert torch.equal(modules.run(module, ids).last_hidden_state, want)
    assert not calls  # on a CPU, nobody asks for them
    use_kernels(monkeypatch, norms)
    torch.testing.assert_close(
        modules.run(module, ids).last_hidden_state, want, rtol=0.05, atol=0.05
    )
    assert calls
