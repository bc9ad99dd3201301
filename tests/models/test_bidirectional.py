"""Removing the causal mask."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from layerscope.errors import ModelError
from layerscope.models import LoadedModel, load, wrap
from layerscope.models.families import family_for
from layerscope.models.load import make_bidirectional
from tests.models.reading import read_layers, some_ids
from tests.tiny import build_tiny, tiny_tokenizer

CAUSAL = ("llama", "mistral", "qwen2", "gpt_neox", "gpt2", "gemma3")


def _load(family: str, folder: Path, **options: object) -> LoadedModel:
    build_tiny(family).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return load(folder, **options)  # type: ignore[arg-type]


def _first_token_moves(model: LoadedModel) -> bool:
    ids = some_ids()
    other = ids.clone()
    other[0, -1] = 9
    return not torch.equal(read_layers(model, ids)[1][0, 0], read_layers(model, other)[1][0, 0])


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", CAUSAL)
def test_later_tokens_reach_the_first(family: str, implementation: str, tmp_path: Path) -> None:
    causal = _load(family, tmp_path, attn_implementation=implementation)
    both = _load(family, tmp_path, attn_implementation=implementation, bidirectional=True)
    assert (causal.identity["bidirectional"], both.identity["bidirectional"]) == (False, True)
    assert not _first_token_moves(causal)
    assert _first_token_moves(both)


@pytest.mark.parametrize("family", CAUSAL)
def test_implementations_agree_and_padding_is_exact(family: str, tmp_path: Path) -> None:
    eager = _load(family, tmp_path, attn_implementation="eager", bidirectional=True)
    sdpa = _load(family, tmp_path, attn_implementation="sdpa", bidirectional=True)
    ids = some_ids()
    padded = torch.cat([ids, torch.full((1, 3), eager.pad_id)], dim=1)
    mask = torch.ones_like(padded)
    mask[:, 7:] = 0
    for a, b, c in zip(
        read_layers(eager, ids),
        read_layers(sdpa, ids),
        read_layers(sdpa, padded, mask),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(c[:, :7], a, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["mamba", "mamba2"])
def test_no_effect_is_an_error(family: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"no effect on .*'{family}'"):
        _load(family, tmp_path, bidirectional=True)


def test_encoders_are_already_bidirectional() -> None:
    module = build_tiny("bert")
    before = read_layers(wrap(module), some_ids())[-1]
    make_bidirectional(module, family_for(module))
    assert torch.equal(read_layers(wrap(module), some_ids())[-1], before)
