"""Architectures that transformers does not have, written here from their papers as models of
transformers.

They are imported when one of them is loaded: the import of transformers' own takes a while.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ATTENTIONS = ("bidirectional", "prefix", "causal")
"""Which patches of an AIM see which."""

_AIM = ("embed_dim", "num_blocks", "num_heads", "patch_size")


def model_type_of(config: Mapping[str, Any]) -> str | None:
    """The model type of a config.json; the published AIMs do not say it, and are told by their
    keys."""
    inner = config["config"] if isinstance(config.get("config"), Mapping) else config
    named = config.get("model_type") or inner.get("model_type")
    return "aim" if named is None and all(key in inner for key in _AIM) else named
