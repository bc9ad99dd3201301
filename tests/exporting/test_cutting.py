"""A model cut at a layer, written and loaded again by plain transformers, gives the layer's
state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModel, LlamaConfig, LlamaForCausalLM

from layerscope.exporting import ExportError
from layerscope.exporting.cutting import Route, check_cuttable, cut, write_cut
from layerscope.models import LoadedModel, wrap
from tests.tiny import GENERIC_FAMILIES, TINY_FAMILIES, tiny_model, tiny_tokenizer

MAIN = ("llama", "gpt_neox", "gpt2", "bert", "mamba", "modernbert", "gemma3", "smollm3")
OTHERS = tuple(name for name in (*TINY_FAMILIES, *GENERIC_FAMILIES) if name not in MAIN)
IDS = torch.tensor([[7, 30, 9, 41, 11, 8], [60, 61, 62, 63, 64, 65]])


def states(model: LoadedModel, layer: int, norm: str) -> torch.Tensor:
    """Return a layer's states by hooks of our own: the input of the first block, or an output."""
    captured: list[torch.Tensor] = []

    def keep(_module: nn.Module, args: Any, *rest: Any) -> None:
        state = rest[-1] if layer else (args[0] if args else rest[0]["hidden_states"])
        captured.append((state[0] if isinstance(state, tuple) else state).clone())

    blocks = model.anatomy.blocks
    if layer:
        handle = blocks[layer - 1].register_forward_hook(keep)
    else:
        handle = blocks[0].register_forward_pre_hook(keep, with_kwargs=True)
    with torch.no_grad():
        model.module(input_ids=IDS, attention_mask=torch.ones_like(IDS))
        handle.remove()
        final = model.anatomy.final_norm
        return captured[0] if norm == "raw" or final is None else final(captured[0])


def reloaded(folder: Path, route: Route) -> torch.Tensor:
    module = AutoModel.from_pretrained(folder).eval()
    mask = torch.ones_like(IDS)
    with torch.no_grad():
        output = module(input_ids=IDS, attention_mask=mask, output_hidden_states=True)
    return output.last_hidden_state if route.index is None else output.hidden_states[route.index]


def check(name: str, layer: int, norm: str, folder: Path) -> Route:
    model = tiny_model(name)
    route = write_cut(model, layer, norm, folder)
    expected = states(model, layer, norm)
    torch.testing.assert_close(reloaded(folder, route), expected, rtol=1e-5, atol=1e-5)
    assert AutoModel.from_pretrained(folder).config.num_hidden_layers == route.blocks
    return route


@pytest.mark.parametrize("norm", ["applied", "raw"])
@pytest.mark.parametrize("name", MAIN)
def test_every_layer(name: str, norm: str, tmp_path: Path) -> None:
    routes = {layer: check(name, layer, norm, tmp_path / str(layer)) for layer in (0, 1, 3)}
    needs_filler = norm == "raw" and name not in ("bert", "mamba")
    assert all(routes[layer].filler == needs_filler for layer in (1, 3))


@pytest.mark.parametrize("name", OTHERS)
def test_the_middle_layer_of_every_other_architecture(name: str, tmp_path: Path) -> None:
    check(name, 2, "raw", tmp_path)


def test_the_block_of_zeros_adds_nothing(tmp_path: Path) -> None:
    model = tiny_model("llama")
    route = write_cut(model, 1, "raw", tmp_path)
    assert (route.blocks, route.index) == (2, 1)
    weights = load_file(tmp_path / "model.safetensors")
    names = {name for name in weights if name.startswith("layers.0.")}
    block = {name: value for name, value in weights.items() if name.startswith("layers.1.")}
    assert block.keys() == {name.replace("layers.0.", "layers.1.") for name in names}
    assert not any(value.any() for value in block.values())
    last = reloaded(tmp_path, Route(1, True, None))
    torch.testing.assert_close(last, states(model, 1, "applied"), rtol=1e-5, atol=1e-5)


def test_without_its_norm_a_model_is_silently_wrong_after_reload(tmp_path: Path) -> None:
    """The reason why the norm is not simply taken out."""
    model = tiny_model("llama")
    part = cut(model, 2, False)
    part.norm = nn.Identity()
    with torch.no_grad():
        before = part(input_ids=IDS).last_hidden_state
    part.save_pretrained(tmp_path)
    torch.testing.assert_close(before, states(model, 2, "raw"), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(reloaded(tmp_path, Route(2, False, None)), before, atol=0.1)


def test_the_whole_model_stays_as_it_was(tmp_path: Path) -> None:
    model = tiny_model("smollm3")
    config = model.module.config.to_dict()
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    write_cut(model, 1, "raw", tmp_path)
    assert model.module.config.to_dict() == config
    after = model.module.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_lists_with_an_entry_per_layer_are_cut_and_lengthened() -> None:
    model = tiny_model("modernbert")
    kinds = list(model.module.config.layer_types)
    for layer, filler in ((1, False), (3, True)):
        config: Any = cut(model, layer, filler).config
        assert config.layer_types == (kinds + kinds[-1:])[: layer + filler]


def test_heads_and_poolers(tmp_path: Path) -> None:
    sizes = {"vocab_size": 262, "hidden_size": 32, "intermediate_size": 48}
    config = LlamaConfig(
        **sizes, num_hidden_layers=3, num_attention_heads=4, tie_word_embeddings=True
    )
    write_cut(wrap(LlamaForCausalLM(config), tiny_tokenizer()), 2, "applied", tmp_path / "tied")
    names = set(load_file(tmp_path / "tied" / "model.safetensors"))
    assert "embed_tokens.weight" in names
    assert not any("lm_head" in name or name.startswith("layers.2") for name in names)
    for has_pooler in (True, False):  # one that is left out is not made at random
        model = tiny_model("bert")
        if not has_pooler:
            model.module.pooler = None
        folder = tmp_path / f"bert-{has_pooler}"
        write_cut(model, 2, "applied", folder)
        assert not load_file(folder / "model.safetensors")["pooler.dense.weight"].any()
        _, report = AutoModel.from_pretrained(folder, output_loading_info=True)
        assert not report["missing_keys"]


class Own(nn.Module):
    """A model that transformers does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(262, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        state = self.embed(input_ids)
        for layer in self.layers:
            state = layer(state)
        return state


def test_models_that_cannot_be_cut() -> None:
    with pytest.raises(ExportError, match="not a transformers model"):
        check_cuttable(wrap(Own(), tiny_tokenizer()))
    bare = tiny_model("llama")
    bare.tokenizer = None
    with pytest.raises(ExportError, match="no tokenizer"):
        check_cuttable(bare)
