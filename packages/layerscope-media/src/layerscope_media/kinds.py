"""The two kinds of items, for the entry points `layerscope.items`."""

from __future__ import annotations

from functools import partial

from layerscope.data import ItemKind
from layerscope_media.labeled import labeled_images
from layerscope_media.load import load_images
from layerscope_media.sounds import load_sounds

IMAGES = ItemKind(
    "images",
    partial(load_images, progress=None),
    ("column", "limit", "split"),
    settings={"tokens": ("patches", "all"), "image_pooling": ("mean", "class")},
    refused={
        "max_length": "max_length applies only to texts. Leave it out for images.",
        "augmenter": "augmenter applies only to texts. Leave it out for images.",
    },
    open_labeled=labeled_images,
    loader="layerscope_media.load_images",
)

SOUNDS = ItemKind(
    "sounds",
    load_sounds,
    ("limit",),
    refused={
        "max_length": "max_length applies only to texts. Leave it out for sounds.",
        "augmenter": "augmenter applies only to texts. Leave it out for sounds.",
    },
    loader="layerscope_media.load_sounds",
)
