"""Texts to profile a model on: corpora, filters and augmented views; and what packages with other
kinds of items build on.

Modules are imported when their names are first used: the processes that make views do without
corpora, and a GPU waits for those.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from layerscope.data.augment import augment, make_views

if TYPE_CHECKING:
    from layerscope.data.corpus import Corpus, load_corpus
    from layerscope.data.hub import dataset_facts, hub_cache, load_hub_dataset
    from layerscope.data.items import Items, Shown, content_key, duplicate_warnings, is_items
    from layerscope.data.kinds import ItemKind
    from layerscope.data.labeled import PARTS, LabeledItems
    from layerscope.data.specs import HubSpec, locate
    from layerscope.data.workers import WorkerError, WorkerPool, cores_here

__all__ = [
    "PARTS",
    "Corpus",
    "HubSpec",
    "ItemKind",
    "Items",
    "LabeledItems",
    "Shown",
    "WorkerError",
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

_HOMES = {
    "corpus": ("Corpus", "load_corpus"),
    "hub": ("dataset_facts", "hub_cache", "load_hub_dataset"),
    "items": ("Items", "Shown", "content_key", "duplicate_warnings", "is_items"),
    "kinds": ("ItemKind",),
    "labeled": ("PARTS", "LabeledItems"),
    "specs": ("HubSpec", "locate"),
    "workers": ("WorkerError", "WorkerPool", "cores_here"),
}


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'layerscope.data' has no attribute {name!r}")
    return getattr(import_module(f"layerscope.data.{home}"), name)
