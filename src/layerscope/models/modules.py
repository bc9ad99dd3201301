"""The torch module of a model: the base model inside what a user has, and tiny forward passes that
settle how it behaves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from layerscope import accelerator
from layerscope.errors import ModelError


def forward_parameters(module: nn.Module) -> set[str]:
    """The names that `module.forward` takes by name (a catch-all `**kwargs` does not count as
    taking them)."""
    return set(inspect.signature(module.forward).parameters)


def run(module: nn.Module, ids: Tensor, mask: Tensor | None = None, cache: Any = None) -> Any:
    """One forward pass, passing only what the model takes. `cache` holds keys and values of tokens
    before these."""
    names = forward_parameters(module)
    given: dict[str, Any] = {}
    if mask is not None and "attention_mask" in names:
        given["attention_mask"] = mask
    if "use_cache" in names:
        given["use_cache"] = cache is not None
    if cache is not None:
        given["past_key_values"] = cache
    gpu = accelerator.on(ids.device)
    with torch.inference_mode(), nullcontext() if gpu is None else gpu.fast_passes(module):
        return module(input_ids=ids, **given) if "input_ids" in names else module(ids, **given)


def first(output: Any) -> Any:
    """The tensor of an output that may be a tensor, a tuple or a model output."""
    if isinstance(output, Tensor):
        return output
    if hasattr(output, "last_hidden_state"):
        return output.last_hidden_state
    return output[0] if isinstance(output, tuple | list) and output else None


def sample(module: nn.Module, length: int = 5) -> Tensor:
    """A few valid token ids on the device where inputs go, never the padding id."""
    config = getattr(module, "config", None)
    size = int(getattr(config, "vocab_size", None) or 16)
    pad = getattr(config, "pad_token_id", None)
    usable = [i for i in range(min(size, length + 8)) if i != pad]
    return torch.tensor(
        [[usable[i % len(usable)] for i in range(length)]], device=input_device(module)
    )


def input_device(module: nn.Module) -> torch.device:
    """Where token ids go: the device of the input embeddings."""
    get = getattr(module, "get_input_embeddings", None)
    if get is not None:
        try:
            return next(get().parameters()).device
        except (NotImplementedError, AttributeError, StopIteration):
            pass
    return next((p.device for p in module.parameters()), torch.device("cpu"))


def weights_dtype(module: nn.Module) -> torch.dtype:
    """What a model computes in: the type of its first weight."""
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)


def sees_ahead(module: nn.Module, read: Callable[[Any], Tensor | None] = first) -> bool:
    """Whether the last token changes the first token's state, with and without padding after the
    text."""
    ids = sample(module)
    other = ids.clone()
    other[0, -1] = ids[0, 0]
    pad = torch.cat([torch.ones_like(ids), torch.zeros_like(ids[:, :1])], dim=1)
    # The two cases take different code paths: without padding, attention may be told "causal"
    # instead of given a mask.
    plain = [read(run(module, x, torch.ones_like(x))) for x in (ids, other)]
    padded = [read(run(module, torch.cat([x, x[:, :1]], dim=1), pad)) for x in (ids, other)]
    return all(
        a is not None and b is not None and not torch.equal(a[0, 0], b[0, 0])
        for a, b in (plain, padded)
    )


def find_shortcuts(module: nn.Module) -> None:
    """Find out, by tiny passes, which steps of a model on a GPU can be done in fewer, where there
    are kernels for them."""
    gpu = accelerator.on(input_device(module))
    if gpu is not None:
        ids = sample(module, 24)
        gpu.find_shortcuts(module, lambda: first(run(module, ids)))


def unwrap(module: Any) -> nn.Module:
    """The text model without a head: inside a sentence-transformers model, an adapter, a head or a
    multimodal model."""
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"wrap takes a torch module, not {type(module).__name__}. For a name or a folder use load()."
        )
    inner: Any = _sentence_transformer(module)
    if hasattr(inner, "peft_config") and hasattr(inner, "get_base_model"):
        inner = inner.get_base_model()
    base = getattr(inner, "base_model", inner)
    inner = base if isinstance(base, nn.Module) else inner
    config = getattr(inner, "config", None)
    if getattr(config, "is_encoder_decoder", False) and hasattr(inner, "get_encoder"):
        encoder = inner.get_encoder()
        return encoder if isinstance(encoder, nn.Module) else inner
    # Two models trained side by side: the one of images is the one whose layers are read.
    if isinstance(getattr(inner, "vision_model", None), nn.Module) and isinstance(
        getattr(inner, "text_model", None), nn.Module
    ):
        return inner.vision_model
    # A multimodal model keeps its text model as the decoder.
    if getattr(config, "text_config", None) is not None and hasattr(inner, "get_decoder"):
        decoder = inner.get_decoder()
        return decoder if isinstance(decoder, nn.Module) else inner
    return inner


def _sentence_transformer(module: nn.Module) -> nn.Module:
    """The transformer inside a sentence-transformers model (a sequence of modules whose first holds
    it)."""
    first = next(iter(module.children()), None)
    if not isinstance(module, nn.Sequential) or first is None:
        return module
    for name in ("auto_model", "model"):
        inner = getattr(first, name, None)
        if isinstance(inner, nn.Module) and hasattr(inner, "config"):
            return inner
    return module


def inner_tokenizer(module: Any, tokenizer: Any) -> Any:
    """The tokenizer given, or the one a sentence-transformers model carries."""
    return tokenizer if tokenizer is not None else getattr(module, "tokenizer", None)


def is_untrained(module: nn.Module) -> bool:
    """Whether a model's weights are as before any training: every scale of its norms is the same
    number. False without norms."""
    scales = [
        one
        for name, one in module.named_parameters()
        if one.ndim == 1 and re.search(r"norm(?!.*bias)|ln_[1f]\.weight$", name, re.IGNORECASE)
    ]
    return bool(scales) and not any(one.is_meta or bool((one != one[0]).any()) for one in scales)
