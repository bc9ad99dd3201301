"""Models: finding, loading and taking them apart."""

from __future__ import annotations

from layerscope.models.catalogue import catalogue, fetch, is_cached
from layerscope.models.images import ImageModel
from layerscope.models.load import kind_read_by, load, open_model, wrap
from layerscope.models.loaded import LoadedModel, Tokens

__all__ = [
    "ImageModel",
    "LoadedModel",
    "Tokens",
    "catalogue",
    "fetch",
    "is_cached",
    "kind_read_by",
    "load",
    "open_model",
    "wrap",
]
