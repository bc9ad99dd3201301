"""The two kinds of items, as the entry points `layerscope.items` name them."""

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
        "max_length": "max_length cuts texts; images are not cut. Leave it out.",
        "augmenter": "augmenter is for texts. Leave it out.",
    },
    open_labeled=labeled_images,
    loader="layerscope_media.load_images",
)

SOUNDS = ItemKind(
    "sounds",
    load_sounds,
    ("limit",),
    refused={
        "max_length": "max_length cuts texts; sounds are read whole. Leave it out.",
        "augmenter": "augmenter is for texts. Leave it out.",
    },
    loader="layerscope_media.load_sounds",
)
