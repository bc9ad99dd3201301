"""Getting at the base model inside what a user holds."""

from __future__ import annotations

from typing import Any

from torch import nn

from layerscope.errors import ModelError


def unwrap(module: Any) -> nn.Module:
    """The text model without a head: inside a sentence-transformers model, an adapter, a head or a multimodal model."""
    if not isinstance(module, nn.Module):
        raise ModelError(f"wrap takes a torch module, not {type(module).__name__}. For a name or a folder use load().")
    inner: Any = _sentence_transformer(module)
    if hasattr(inner, "peft_config") and hasattr(inner, "get_base_model"):
        inner = inner.get_base_model()
    base = getattr(inner, "base_model", inner)
    inner = base if isinstance(base, nn.Module) else inner
    config = getattr(inner, "config", None)
    if getattr(config, "is_encoder_decoder", False) and hasattr(inner, "get_encoder"):
        encoder = inner.get_encoder()
        return encoder if isinstance(encoder, nn.Module) else inner
    # Image and text models trained side by side: the image model is the one whose layers are read.
    if isinstance(getattr(inner, "vision_model", None), nn.Module) and isinstance(getattr(inner, "text_model", None), nn.Module):
        return inner.vision_model
    # A multimodal model keeps its text model as the decoder.
    if getattr(config, "text_config", None) is not None and hasattr(inner, "get_decoder"):
        decoder = inner.get_decoder()
        return decoder if isinstance(decoder, nn.Module) else inner
    return inner


def _sentence_transformer(module: nn.Module) -> nn.Module:
    """The transformer inside a sentence-transformers model (a sequence of modules whose first holds it)."""
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
