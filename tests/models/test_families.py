"""Every family's declaration against what the model itself computes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import AlbertConfig, AlbertModel

from layerscope.errors import ModelError, UnknownNameError
from layerscope.models import wrap
from layerscope.models.families import FAMILIES, family_for
from tests.models.reading import read, read_layers, some_ids
from tests.tiny import GENERIC_FAMILIES, TINY_FAMILIES, build_tiny, tiny_model

EVERY = (*TINY_FAMILIES, *GENERIC_FAMILIES)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def test_every_family_file_is_found_and_has_a_tiny_model() -> None:
    declared = {name for name in FAMILIES if FAMILIES.source(name) is None}
    assert {
        "gpt_neox",
        "llama",
        "gemma3",
        "gpt2",
        "mamba",
        "mamba2",
        "bert",
        "roberta",
        "mpnet",
        "modernbert",
    } <= declared
    assert declared == {tiny_model(name).anatomy.family for name in EVERY}
    assert {FAMILIES.get(name).kind for name in declared} == {"texts"}


def test_every_declared_model_type_has_a_tiny_model() -> None:
    built = {build_tiny(name).config.model_type for name in TINY_FAMILIES}
    own = [family for name, family in FAMILIES.all().items() if FAMILIES.source(name) is None]
    assert {t for family in own for t in family.model_types} == built


@pytest.mark.parametrize("name", EVERY)
def test_layers_equal_the_models_own_hidden_states(name: str) -> None:
    model, ids = tiny_model(name), some_ids()
    layers = read_layers(model, ids)
    with torch.no_grad():
        out = model.module(
            input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True
        )
    theirs, norm = list(out.hidden_states), model.anatomy.final_norm
    if name in ("mamba", "mamba2", "falcon_mamba"):
        theirs = [
            layers[0],
            *theirs[:-2],
            theirs[-1],
        ]  # no entry for the embeddings, and both a raw and a normed last
        assert torch.equal(out.hidden_states[-2], layers[-1])
        assert torch.equal(layers[0], model.module.get_input_embeddings()(ids))
    assert len(theirs) == model.n_blocks + 1 == 4
    for ours, own in zip(layers[:-1], theirs[:-1], strict=True):
        torch.testing.assert_close(ours, own, rtol=0, atol=0)
    with torch.inference_mode():
        last = layers[-1] if norm is None else norm(layers[-1])
    torch.testing.assert_close(last, out.last_hidden_state, rtol=0, atol=0)
    torch.testing.assert_close(last, theirs[-1], rtol=0, atol=0)
    if norm is not None:
        assert not torch.allclose(
            layers[-1], out.last_hidden_state, atol=1e-2
        )  # the norm does something


@torch.inference_mode()
@pytest.mark.parametrize("name", TINY_FAMILIES)
def test_taps_obey_the_residual_identity(name: str) -> None:
    model, ids = tiny_model(name), some_ids(rows=2)
    layers = read_layers(model, ids)
    for k, taps in enumerate(model.anatomy.taps):
        got = dict(zip(taps, read(model, list(taps.values()), ids), strict=True))
        x, y = layers[k], layers[k + 1]
        match model.anatomy.residual:
            case "sequential":
                torch.testing.assert_close(x + got["attn"], got["mid"], **CLOSE)
                torch.testing.assert_close(got["mid"] + got["mlp"], y, **CLOSE)
            case "parallel":
                assert "mid" not in got
                torch.testing.assert_close(x + got["attn"] + got["mlp"], y, **CLOSE)
            case "single":
                assert set(got) == {"attn", "norm1"}
                torch.testing.assert_close(x + got["attn"], y, **CLOSE)
            case "post-norm":
                block = model.anatomy.blocks[k]
                attention = block.attention
                first = attention.LayerNorm if name == "mpnet" else attention.output.LayerNorm
                torch.testing.assert_close(first(x + got["attn"]), got["mid"], **CLOSE)
                torch.testing.assert_close(
                    block.output.LayerNorm(got["mid"] + got["mlp"]), y, **CLOSE
                )
            case other:
                pytest.fail(f"{name} declares {other}")


@pytest.mark.parametrize("name", EVERY)
def test_padding_changes_nothing_on_real_tokens(name: str) -> None:
    model, pad = tiny_model(name), 4
    short, long = some_ids(length=6, seed=1), some_ids(length=6 + pad, seed=2)
    alone = read_layers(model, short)
    ids = torch.cat([torch.cat([short, torch.full((1, pad), model.pad_id)], dim=1), long])
    mask = torch.ones_like(ids)
    mask[0, 6:] = 0
    for ours, padded in zip(alone, read_layers(model, ids, mask), strict=True):
        torch.testing.assert_close(padded[:1, :6], ours, rtol=1e-3, atol=1e-4)
    with pytest.raises(ModelError, match="pad them on the right"):
        model.forward(ids, mask.flip(1))


def test_unknown_family_suggests() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'llama'"):
        family_for(build_tiny("llama"), "lama")


def test_wrong_family_says_what_is_missing() -> None:
    with pytest.raises(
        ModelError, match=r"LlamaModel does not have the structure of family 'gpt2'.*no 'h'"
    ):
        wrap(build_tiny("llama"), None, family="gpt2")


@pytest.mark.parametrize(
    "name", ["llama", "gpt2", "mamba", "bert", "mpnet", "modernbert", "gemma3"]
)
def test_generic_finds_what_the_family_files_declare(name: str) -> None:
    module = build_tiny(name)
    declared, found = wrap(module), wrap(module, family="generic")
    assert list(found.anatomy.blocks) == list(declared.anatomy.blocks)
    assert found.anatomy.final_norm is declared.anatomy.final_norm
    bidirectional = name in (
        "bert",
        "mpnet",
        "modernbert",
    )  # declared by a family; of others found by a look at the states
    assert found.identity["bidirectional"] == declared.identity["bidirectional"] == bidirectional


class _Toy(nn.Module):
    """A model without a config whose output is not a norm of the last block's output."""

    def __init__(self, lists: int = 1) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        for i in range(lists):
            setattr(self, f"part{i}", nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)]))
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 8)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        for block in self.part0:
            x = block(x)
        return self.out(self.norm(x))


def test_generic_failures_name_the_candidates() -> None:
    with pytest.raises(
        ModelError,
        match=r"2 lists of modules could be the blocks.*part0 \(2 × Linear\), part1 \(2 × Linear\)",
    ):
        wrap(_Toy(lists=2))
    with pytest.raises(
        ModelError,
        match=r"final norm of _Toy could not be determined.*neither.*Norms outside the blocks: norm",
    ):
        wrap(_Toy())
    config = AlbertConfig(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, embedding_size=8,
                                 intermediate_size=16, vocab_size=32)  # fmt: skip
    with pytest.raises(ModelError, match="0 lists of modules of length num_hidden_layers = 3"):
        wrap(AlbertModel(config))
