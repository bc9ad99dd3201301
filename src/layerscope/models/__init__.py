"""Models: finding, loading and taking them apart."""

from __future__ import annotations

from layerscope.models.catalogue import MODELS, catalogue
from layerscope.models.images import ImageModel
from layerscope.models.load import kind_read_by, load, open_model, wrap
from layerscope.models.loaded import LoadedModel, Tokens

__all__ = [
    "MODELS",
    "ImageModel",
    "LoadedModel",
    "Tokens",
    "catalogue",
    "kind_read_by",
    "load",
    "open_model",
    "wrap",
]
