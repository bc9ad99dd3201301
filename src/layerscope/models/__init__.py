"""Models: finding, loading and taking them apart."""

from __future__ import annotations

from layerscope.data.views import ViewSettings
from layerscope.models.families import FAMILIES, Family, GenericFamily, pre_norm_taps
from layerscope.models.inputs import ItemReader, Part, ReadSettings, Row
from layerscope.models.load import kind_read_by, load, open_model, wrap
from layerscope.models.loaded import LoadedModel, Tokens
from layerscope.models.modules import unwrap
from layerscope.models.pretrained import read_pretrained
from layerscope.models.settings import quiet
from layerscope.models.source import MODELS, Source, catalogue

__all__ = [
    "FAMILIES",
    "MODELS",
    "Family",
    "GenericFamily",
    "ItemReader",
    "LoadedModel",
    "Part",
    "ReadSettings",
    "Row",
    "Source",
    "Tokens",
    "ViewSettings",
    "catalogue",
    "kind_read_by",
    "load",
    "open_model",
    "pre_norm_taps",
    "quiet",
    "read_pretrained",
    "unwrap",
    "wrap",
]
