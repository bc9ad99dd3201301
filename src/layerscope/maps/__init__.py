"""Maps: every text as a point at some layers, and how far each picture can be trusted."""

from __future__ import annotations

from layerscope.maps.layer_map import FILE, LayerMap, Vectors, make_map, pick, read_map
from layerscope.maps.layout import LEAST, MOST, TRUSTED, Reading, clusters, group_names, lay_out

__all__ = [
    "FILE",
    "LEAST",
    "MOST",
    "TRUSTED",
    "LayerMap",
    "Reading",
    "Vectors",
    "clusters",
    "group_names",
    "lay_out",
    "make_map",
    "pick",
    "read_map",
]
