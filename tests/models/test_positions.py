"""Whether positions start again is asked once per length, and never in the place of another model or thread."""

from __future__ import annotations

import threading

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import masking_utils

from layerscope.models import modules
from layerscope.models.positions import remembered_positions

asked: list[tuple[int, ...]] = []


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    own = masking_utils.find_packed_sequence_indices

    def ask(position_ids: Tensor) -> Tensor | None:
        asked.append(tuple(position_ids.shape))
        return own(position_ids)

    asked.clear()
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", ask)


def tiny(family: str) -> nn.Module:
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 32, "vocab_size": 50}
    torch.manual_seed(0)
    config, model = (getattr(transformers, family + kind) for kind in ("Config", "Model"))
    return model(config(**sizes)).eval()


def ids(texts: int, tokens: int) -> Tensor:
    return torch.randint(0, 50, (texts, tokens), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", ["GPTNeoX", "Llama"])
def test_once_per_length_and_with_the_same_bits(family: str) -> None:
    module = tiny(family)
    want = modules.first(modules.run(module, ids(3, 7)))
    asked.clear()
    with remembered_positions(module):
        for tokens in (7, 7, 5, 7):
            got = modules.first(modules.run(module, ids(3, tokens)))
    assert asked == [(3, 7), (3, 5)]
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    modules.run(module, ids(3, 7))
    assert len(asked) == 3  # it is transformers' own again


def test_another_model_is_asked_for_itself() -> None:
    for module in (tiny("Llama"), tiny("Llama")):
        with remembered_positions(module):
            modules.run(module, ids(3, 7))
    assert asked == [(3, 7)] * 2


def test_positions_of_one_text_or_of_each_text_are_looked_at() -> None:
    module = tiny("Llama")
    with remembered_positions(module):
        for _ in range(2):
            modules.run(module, ids(1, 7))
            modules.run(module, ids(2, 7), positions=torch.arange(7).repeat(2, 1))
    assert len(asked) == 4


def test_texts_packed_into_one_row_are_found() -> None:
    module, packed = tiny("Llama"), torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    want = modules.first(modules.run(module, ids(2, 7), positions=packed))
    with remembered_positions(module):
        got = [modules.first(modules.run(module, ids(2, 7), positions=packed)) for _ in range(2)]
    for one in got:
        torch.testing.assert_close(one, want, rtol=0, atol=0)
    assert not torch.equal(want, modules.first(modules.run(module, ids(2, 7))))


def test_other_threads_are_left_alone() -> None:
    module = tiny("Llama")
    with remembered_positions(module):
        modules.run(module, ids(3, 7))
        for _ in range(2):
            other = threading.Thread(target=modules.run, args=(module, ids(3, 7)))
            other.start()
            other.join()
    assert asked == [(3, 7)] * 3


def test_nothing_is_done_where_transformers_has_no_such_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(masking_utils, "find_packed_sequence_indices")
    with remembered_positions(tiny("Llama")):
        assert not hasattr(masking_utils, "find_packed_sequence_indices")
