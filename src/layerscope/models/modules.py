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
    """Return the names that `module.forward` takes by name; a catch-all `**kwargs` counts for
    none."""
    return set(inspect.signature(module.forward).parameters)


def run(module: nn.Module, ids: Tensor, mask: Tensor | None = None, cache: Any = None) -> Any:
    """Run one forward pass, passing only what the model takes. `cache` holds keys and values of
    tokens before these."""
    names = forward_parameters(module)
    inputs: dict[str, Any] = {}
    if mask is not None and "attention_mask" in names:
        inputs["attention_mask"] = mask
    if "use_cache" in names:
        inputs["use_cache"] = cache is not None
    if cache is not None:
        inputs["past_key_values"] = cache
    gpu = accelerator.on(ids.device)
    with torch.inference_mode(), nullcontext() if gpu is None else gpu.fast_passes(module):
        return module(input_ids=ids, **inputs) if "input_ids" in names else module(ids, **inputs)


def first(output: Any) -> Any:
    """Return the tensor of an output that may be a tensor, a tuple or a model output."""
    if isinstance(output, Tensor):
        return output
    if hasattr(output, "last_hidden_state"):
        return output.last_hidden_state
    return output[0] if isinstance(output, tuple | list) and output else None


def sample(module: nn.Module, length: int = 5) -> Tensor:
    """Return a few valid token ids on the device of the input, never the padding id."""
    config = getattr(module, "config", None)
    size = int(getattr(config, "vocab_size", None) or 16)
    pad = getattr(config, "pad_token_id", None)
    usable = [i for i in range(min(size, length + 8)) if i != pad]
    ids = [usable[i % len(usable)] for i in range(length)]
    return torch.tensor([ids], device=input_device(module))


def input_device(module: nn.Module) -> torch.device:
    """Return the device of the token ids: that of the input embeddings."""
    get = getattr(module, "get_input_embeddings", None)
    if get is not None:
        try:
            return next(get().parameters()).device
        except (NotImplementedError, AttributeError, StopIteration):
            pass
    return next((p.device for p in module.parameters()), torch.device("cpu"))


def weights_dtype(module: nn.Module) -> torch.dtype:
    """Return the type of a model's first weight, in which it computes."""
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)


def sees_ahead(module: nn.Module, read: Callable[[Any], Tensor | None] = first) -> bool:
    """Return whether the last token changes the first token's state, with and without padding
    after the text."""
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
    """Return the text model without a head: inside a sentence-transformers model, an adapter, a
    head or a multimodal model."""
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"wrap takes a torch module, not {type(module).__name__}. For a name or a folder use "
            "load()."
        )
    inner: Any = _sentence_transformer(module)
    if hasattr(inner, "peft_config") and hasattr(inner, "get_base_model"):
        inner = inner.get_base_model()
    base = getattr(inner, "base_model", inner)
    inner = base if isinstance(base, nn.Module) else inner
    config = getattr(inner, "config", None)
    if getattr(config, "is_encoder_decoder", False) and hasattr(inner, "get_encoder"):
        text_model = inner.get_encoder()
    elif _has_module(inner, "vision_model") and _has_module(inner, "text_model"):
        # Two models trained side by side: the one of images is the one whose layers are read.
        text_model = inner.vision_model
    elif getattr(config, "text_config", None) is not None and hasattr(inner, "get_decoder"):
        text_model = inner.get_decoder()  # a multimodal model keeps its text model as the decoder
    else:
        text_model = inner
    return text_model if isinstance(text_model, nn.Module) else inner


def _has_module(module: Any, name: str) -> bool:
    return isinstance(getattr(module, name, None), nn.Module)


def _sentence_transformer(module: nn.Module) -> nn.Module:
    """Return the transformer inside a sentence-transformers model, a sequence of modules whose
    first holds it."""
    first_part = next(iter(module.children()), None)
    if not isinstance(module, nn.Sequential) or first_part is None:
        return module
    for name in ("auto_model", "model"):
        inner = getattr(first_part, name, None)
        if isinstance(inner, nn.Module) and hasattr(inner, "config"):
            return inner
    return module


def inner_tokenizer(module: Any, tokenizer: Any) -> Any:
    """Return the given tokenizer, or the one that a sentence-transformers model carries."""
    return tokenizer if tokenizer is not None else getattr(module, "tokenizer", None)


def is_untrained(module: nn.Module) -> bool:
    """Return whether a model's weights are as before any training: every scale of its norms is the
    same number. False without norms."""
    scales = [
        weight
        for name, weight in module.named_parameters()
        if weight.ndim == 1 and re.search(r"norm(?!.*bias)|ln_[1f]\.weight$", name, re.IGNORECASE)
    ]
    return bool(scales) and not any(
        weight.is_meta or bool((weight != weight[0]).any()) for weight in scales
    )
