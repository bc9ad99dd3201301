"""Texts to profile a model on: corpora, filters and augmented views."""

from __future__ import annotations

from layerscope.data.augment import augment, make_views
from layerscope.data.catalogue import corpora
from layerscope.data.catalogue import fetch as fetch_corpus
from layerscope.data.corpus import Corpus, load_corpus

__all__ = ["Corpus", "augment", "corpora", "fetch_corpus", "load_corpus", "make_views"]
