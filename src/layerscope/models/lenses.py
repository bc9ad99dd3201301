"""Models inside TransformerLens and nnsight, read as the network that they hold: nothing is loaded
or stored twice.

- nnsight (`LanguageModel`, `TransformersModel`): the transformers model that it wraps.
- TransformerLens's `TransformerBridge`: the transformers model behind it, without the instruments,
  sharing its weights.
- TransformerLens's `HookedTransformer` (before version 4): its own blocks and final norm,
  `blocks.N.hook_resid_post`.

TransformerLens can fold norms into weights and center what writes to the residual stream. Such a
model computes the same logits from other states: it is refused.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from layerscope.errors import ModelError

_INSIDE = "_original_component"  # what an instrument of a bridge holds


def plain_model(given: Any, tokenizer: Any = None) -> tuple[Any, Any]:
    """The torch module inside a model of another library, and its tokenizer; other models as they
    are."""
    own = tokenizer if tokenizer is not None else getattr(given, "tokenizer", None)
    libraries = {kind.__module__.partition(".")[0] for kind in type(given).__mro__}
    if "nnsight" in libraries:
        return _inside_nnsight(given), own
    if "transformer_lens" in libraries and hasattr(given, "original_model"):
        return _behind_bridge(given), own
    if "transformer_lens" in libraries and hasattr(given, "ln_final"):
        return HookedStates(given), own
    return given, tokenizer


def _inside_nnsight(given: Any) -> nn.Module:
    inner = getattr(given, "_module", None) or getattr(given, "_model", None)
    if not isinstance(inner, nn.Module):
        raise ModelError(
            f"{type(given).__name__} of nnsight holds no torch module that could be read."
        )
    if any(one.is_meta for one in inner.parameters()):
        raise ModelError(
            "the weights of this nnsight model are not loaded yet: make it with dispatch=True."
        )
    return inner


def _behind_bridge(given: Any) -> nn.Module:
    """The transformers model without instruments. Parameters and buffers are the bridge's own;
    modules are copies."""
    if getattr(given, "_weights_processed", False):
        raise _processed(
            "TransformerBridge",
            "leave out enable_compatibility_mode(), or give it no_processing=True",
        )
    whole = given.original_model
    shared: dict[int, Any] = {id(one): one for one in (*whole.parameters(), *whole.buffers())}
    bare = _taken_out(copy.deepcopy(whole, shared))
    ids = torch.arange(3, 9, device=next(whole.parameters()).device)[None]
    with torch.inference_mode():
        told, own = (model(input_ids=ids)[0] for model in (whole, bare))
    if not torch.allclose(told, own, rtol=1e-4, atol=1e-4):
        raise ModelError(
            "the model behind this TransformerBridge computes something else than the bridge. Load it by its name."
        )
    return bare


def _taken_out(module: nn.Module) -> nn.Module:
    while isinstance(inner := module._modules.get(_INSIDE), nn.Module):
        module = inner
    for name, child in list(module.named_children()):
        setattr(module, name, _taken_out(child))
    return module


class HookedStates(nn.Module):
    """A HookedTransformer that gives the states after its last block and final norm, as other
    models here do."""

    def __init__(self, lens: Any) -> None:
        super().__init__()
        told = lens.cfg
        centered = told.normalization_type == "LN" and bool(
            lens.embed.W_E.detach().float().mean(-1).abs().max() < 1e-6
        )
        if told.normalization_type in ("LNPre", "RMSPre", None) or centered:
            raise _processed(
                "HookedTransformer", "load it with HookedTransformer.from_pretrained_no_processing"
            )
        self.lens = lens
        self.config = SimpleNamespace(
            num_hidden_layers=told.n_layers, hidden_size=told.d_model, vocab_size=told.d_vocab,
            max_position_embeddings=told.n_ctx, name_or_path=told.model_name, model_type="transformer_lens", to_dict=told.to_dict,
        )  # fmt: skip

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """(B, T) token ids, padded on the right: states (B, T, D)."""
        states = self.lens(
            input_ids, attention_mask=attention_mask, stop_at_layer=self.config.num_hidden_layers
        )
        return self.lens.ln_final(states)


def _processed(kind: str, instead: str) -> ModelError:
    return ModelError(
        f"the weights of this {kind} were processed (norms folded in, or what is written centered), or it has no norms: its "
        f"states are not those of the model. To read them, {instead}."
    )
