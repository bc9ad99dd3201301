"""Texts to profile a model on: corpora, filters and augmented views.

Corpora are imported when they are first used: the processes that make views do without them, and a
GPU waits for those.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from layerscope.data.augment import augment, make_views

if TYPE_CHECKING:
    from layerscope.data.corpus import Corpus, load_corpus

__all__ = ["Corpus", "augment", "load_corpus", "make_views"]


def __getattr__(name: str) -> Any:
    if name not in ("Corpus", "load_corpus"):
        raise AttributeError(f"module 'layerscope.data' has no attribute {name!r}")
    return getattr(import_module("layerscope.data.corpus"), name)
