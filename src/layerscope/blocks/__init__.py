"""Blocks of an encoder that can be left out, while the others do their work as well."""

from __future__ import annotations

from layerscope.blocks.encoder import Encoder, Variant
from layerscope.blocks.job import make_faster
from layerscope.blocks.refit import refit
from layerscope.blocks.result import FasterEncoder
from layerscope.blocks.search import search

__all__ = ["Encoder", "FasterEncoder", "Variant", "make_faster", "refit", "search"]
