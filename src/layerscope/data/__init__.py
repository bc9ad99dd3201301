"""Texts to profile a model on: corpora, filters and augmented views; and what packages with other
kinds of items build on."""

from __future__ import annotations

from layerscope.data.corpus import Corpus, load_corpus
from layerscope.data.hub import HubSpec, dataset_facts, hub_cache, load_hub_dataset, locate
from layerscope.data.items import (
    PARTS,
    ItemKind,
    Items,
    LabeledItems,
    Shown,
    content_key,
    duplicate_warnings,
    is_items,
)
from layerscope.data.views import augment, make_views
from layerscope.data.workers import WorkerPool, cores_here

__all__ = [
    "PARTS",
    "Corpus",
    "HubSpec",
    "ItemKind",
    "Items",
    "LabeledItems",
    "Shown",
    "WorkerPool",
    "augment",
    "content_key",
    "cores_here",
    "dataset_facts",
    "duplicate_warnings",
    "hub_cache",
    "is_items",
    "load_corpus",
    "load_hub_dataset",
    "locate",
    "make_views",
]
