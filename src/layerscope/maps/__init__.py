"""Maps: every text as a point at every layer, and how far each picture can be trusted."""

from __future__ import annotations

from layerscope.maps.layer_map import FILE, LayerMap, Reading, make_map, read_map
from layerscope.maps.layout import LEAST, MOST, NEIGHBORS, Layout, lay_out

__all__ = [
    "FILE", "LEAST", "MOST", "NEIGHBORS",
    "LayerMap", "Layout", "Reading", "lay_out", "make_map", "read_map",
]  # fmt: skip
