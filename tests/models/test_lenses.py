"""Models inside other libraries' objects, by stand-ins; `make integrations` reads the real nnsight
and TransformerLens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import layerscope
from layerscope.errors import ModelError
from tests.tiny import build_tiny, tiny_tokenizer

TEXTS = ["one text here", "another one, which is longer than that"]


def named(library: str, kind: type) -> Any:
    """A class that seems to be of a library."""
    return type(kind.__name__, (kind,), {"__module__": f"{library}.models"})


def vectors(model: Any) -> np.ndarray:
    return layerscope.encode(model, TEXTS, layers="all", progress=False)  # type: ignore[return-value]


def test_what_nnsight_wraps_is_read() -> None:
    class Wrapped:
        def __init__(self, module: nn.Module) -> None:
            self._module, self.tokenizer = module, tiny_tokenizer()

    module = build_tiny("llama")
    wanted = vectors(layerscope.wrap(module, tiny_tokenizer()))
    assert np.array_equal(vectors(named("nnsight", Wrapped)(module)), wanted)
    assert np.array_equal(vectors(layerscope.load(named("nnsight", Wrapped)(module))), wanted)
    with torch.device("meta"):
        lazy = LlamaForCausalLM(
            LlamaConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=10)
        )
    with pytest.raises(ModelError, match="not loaded yet: make it with dispatch=True"):
        layerscope.wrap(named("nnsight", Wrapped)(lazy))


class Instrument(nn.Module):
    """Holds a part of a model and stands in its place."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self._original_component = inner

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_original_component"), name)

    def forward(self, *given: Any, **more: Any) -> Any:
        return self._original_component(*given, **more)


def test_a_bridge_is_read_without_its_instruments_and_shares_its_weights() -> None:
    class Bridge(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.original_model, self.tokenizer = model, tiny_tokenizer()

    wanted = vectors(layerscope.wrap(build_tiny("llama"), tiny_tokenizer()))
    model: Any = build_tiny("llama")
    for i, block in enumerate(model.layers):
        block.self_attn = Instrument(block.self_attn)
        model.layers[i] = Instrument(block)
    bridge = named("transformer_lens", Bridge)(model)
    found = layerscope.wrap(bridge)
    assert np.allclose(vectors(found), wanted, atol=1e-6)
    assert set(found.anatomy.taps[0]) == {"norm1", "attn", "mid", "norm2", "mlp"}
    held = {one.data_ptr() for one in bridge.parameters()}
    assert {one.data_ptr() for one in found.module.parameters()} == held
    assert isinstance(bridge.original_model.layers[0], Instrument)  # the bridge is as it was
    bridge._weights_processed = True
    with pytest.raises(ModelError, match="weights of this TransformerBridge were processed"):
        layerscope.wrap(bridge)


class Lens(nn.Module):
    """As much of a HookedTransformer as is used: a residual stream, with padding masked out of a
    running mean."""

    def __init__(self, norm: str = "LN") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cfg = SimpleNamespace(
            n_layers=2, d_model=8, d_vocab=300, n_ctx=64, model_name="mine", normalization_type=norm, to_dict=dict
        )  # fmt: skip
        self.embed = nn.Module()
        self.embed.W_E = nn.Parameter(torch.randn(300, 8))
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.ln_final, self.tokenizer = nn.LayerNorm(8), tiny_tokenizer()

    def forward(
        self, ids: torch.Tensor, attention_mask: Any = None, stop_at_layer: int | None = None
    ) -> torch.Tensor:
        states = self.embed.W_E[ids]
        for block in self.blocks[:stop_at_layer]:
            states = block(states)
        return states


def test_the_blocks_and_the_norm_of_a_hooked_transformer() -> None:
    lens = named("transformer_lens", Lens)()
    found = layerscope.wrap(lens)
    assert (found.name, found.anatomy.family, found.n_blocks, found.width) == (
        "mine",
        "transformer_lens",
        2,
        8,
    )
    ids = torch.tensor([lens.tokenizer(TEXTS[1])["input_ids"]])
    wanted = lens.ln_final(lens.blocks[1](lens.blocks[0](lens.embed.W_E[ids])))[0].mean(0)
    assert np.allclose(vectors(lens)[2][1], wanted.detach().numpy(), atol=1e-5)
    with pytest.raises(ModelError, match="from_pretrained_no_processing"):
        layerscope.wrap(named("transformer_lens", Lens)("LNPre"))
    lens.embed.W_E.data -= lens.embed.W_E.data.mean(-1, keepdim=True)
    with pytest.raises(ModelError, match="what is written centered"):
        layerscope.wrap(lens)
