"""Blocks of an encoder that can be left out, while the others do their work as well."""

from __future__ import annotations

from layerscope.blocks.encoder import Encoder, Variant
from layerscope.blocks.job import Request, Texts, make_faster
from layerscope.blocks.refit import refit
from layerscope.blocks.result import FasterEncoder, reads_last_state
from layerscope.blocks.search import search
from layerscope.blocks.train import TrainRequest

__all__ = [
    "Encoder",
    "FasterEncoder",
    "Request",
    "Texts",
    "TrainRequest",
    "Variant",
    "make_faster",
    "reads_last_state",
    "refit",
    "search",
]
