"""Passes without attention masks: only where padding cannot reach a text, which is tried."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layerscope.capture import make_batch
from layerscope.models import modules
from layerscope.models.load import make_bidirectional
from layerscope.models.modules import Maskless, maskless
from tests.tiny import build_tiny, tiny_model


@pytest.mark.parametrize(
    ("family", "padded"),
    [
        ("llama", True),
        ("gpt_neox", True),
        ("gemma3", True),
        ("gpt2", True),
        ("mamba", True),
        ("bert", False),
        ("modernbert", False),
    ],
)
def test_what_follows_a_text_matters_to_models_that_see_it(family: str, padded: bool) -> None:
    assert maskless(build_tiny(family).eval()) == Maskless(True, padded)


def test_a_model_made_to_see_both_ways_keeps_its_mask() -> None:
    module = build_tiny("llama").eval()
    make_bidirectional(module)
    assert not maskless(module).padded


class _Counts(nn.Module):
    """Its states depend on how many tokens the mask has; without one it fails, or counts wrong."""

    def __init__(self, needs_it: bool) -> None:
        super().__init__()
        self.table, self.needs_it = nn.Embedding(16, 4), needs_it

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if attention_mask is None:
            if self.needs_it:
                raise ValueError("no mask")
            return self.table(input_ids)
        return self.table(input_ids) * attention_mask.sum(-1)[:, None, None]


@pytest.mark.parametrize("needs_it", [True, False])
def test_a_model_that_reads_more_from_its_mask_keeps_it(needs_it: bool) -> None:
    assert maskless(_Counts(needs_it)) == Maskless(False, False)


def test_batches_go_without_masks_only_where_that_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    batches = {
        "full": make_batch([[3, 4, 5], [6, 7, 8]], model.pad_id),
        "right": make_batch([[3, 4, 5], [6, 7]], model.pad_id),
    }
    want = {name: model.run(batch).last_hidden_state for name, batch in batches.items()}
    given: list[Any] = []
    run = modules.run
    monkeypatch.setattr(modules, "run", lambda module, ids, mask=None, *more: given.append(mask) or run(module, ids, mask, *more))
    for known, masked in [(None, [1, 1]), (Maskless(True, False), [0, 1]), (Maskless(True, True), [0, 0])]:
        model._tried, model._open_shortcuts = known, int(known is not None)
        given.clear()
        got = {name: model.run(batch).last_hidden_state for name, batch in batches.items()}
        assert [mask is not None for mask in given] == [bool(m) for m in masked]
        for name, batch in batches.items():
            real = torch.ones_like(batch.input_ids, dtype=torch.bool) if batch.mask is None else batch.mask
            torch.testing.assert_close(got[name][real], want[name][real], rtol=1e-5, atol=1e-6)


def test_nothing_is_tried_without_a_gpu() -> None:
    model = tiny_model("llama")
    with model.shortcuts():
        assert model._maskless is None


def test_masks_are_left_out_only_while_asked_for() -> None:
    model = tiny_model("llama")
    model._tried = Maskless(True, True)
    with model.shortcuts():
        assert model._maskless == Maskless(True, True)
        with model.shortcuts():
            pass
        assert model._maskless == Maskless(True, True)
    assert model._maskless is None  # what is run afterwards does not depend on a profile before
