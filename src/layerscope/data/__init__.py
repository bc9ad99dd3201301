"""Texts to profile a model on: corpora, filters and augmented views.

Corpora are imported when they are first used: the processes that make views do without them, and a GPU waits for those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layerscope.data.augment import augment, make_views

if TYPE_CHECKING:
    from layerscope.data.catalogue import corpora
    from layerscope.data.catalogue import fetch as fetch_corpus
    from layerscope.data.corpus import Corpus, load_corpus

__all__ = ["Corpus", "augment", "corpora", "fetch_corpus", "load_corpus", "make_views"]


def __getattr__(name: str) -> Any:
    if name in ("Corpus", "load_corpus"):
        from layerscope.data import corpus

        return getattr(corpus, name)
    if name in ("corpora", "fetch_corpus"):
        from layerscope.data import catalogue

        return catalogue.corpora if name == "corpora" else catalogue.fetch
    raise AttributeError(f"module 'layerscope.data' has no attribute {name!r}")
