"""Architectures that transformers does not have, written here from their papers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layerscope.models.architectures.aim import is_aim
from layerscope.models.architectures.tiny_vit import MODEL_TYPE as TINY_VIT


def own_architecture(config: Mapping[str, Any]) -> str | None:
    """The family of a config.json that describes one of these, or None."""
    if config.get("model_type") == TINY_VIT:
        return "tiny_vit"
    return "aim" if is_aim(config) else None
