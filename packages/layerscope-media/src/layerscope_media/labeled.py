"""Labeled images and their splits, for probes."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.data import PARTS, LabeledItems, is_items
from layerscope.errors import DataError
from layerscope_media.image_sets import IMAGE_SETS
from layerscope_media.imageset import ImageSet
from layerscope_media.load import load_images


def label_parts(sets: dict[str, Any]) -> LabeledItems:
    """Join the labeled image sets of several splits; the split "" means all images, to be split
    later.

    An image of the test split that is also in training, with the same content, is left out there.
    """
    for split, images in sets.items():
        if images.labels is None:
            raise DataError(
                f"{images.name} ({split or 'all'}) has no labels. A probe needs class folders or a "
                "label column."
            )
    classes = tuple(dict.fromkeys(c for images in sets.values() for c in images.classes))
    items: list[Any] = []
    names: list[str] = []
    digests: list[bytes] = []
    labels: list[int] = []
    belongs: list[str] = []
    dropped: Counter[str] = Counter()
    seen_keys: set[int] = set()
    for split in ("test", "validation", "train", ""):
        images = sets.get(split)
        if images is None:
            continue
        dropped.update(images.dropped)
        fresh = [
            i
            for i, key in enumerate(images.keys.tolist())
            if split in ("test", "") or key not in seen_keys
        ]
        if len(fresh) < len(images):
            dropped["also in another part"] += len(images) - len(fresh)
        seen_keys.update(images.keys.tolist())
        items += [images.items[i] for i in fresh]
        names += [images.names[i] for i in fresh]
        digests += [images.digests[i] for i in fresh]
        labels += [classes.index(images.classes[int(images.labels[i])]) for i in fresh]
        belongs += [split] * len(fresh)
    first_set = next(iter(sets.values()))
    whole = ImageSet.of(
        items, np.array(labels), classes, first_set.name, dict(first_set.source), names, digests
    )
    places = {p: np.flatnonzero([b == p for b in belongs]) for p in PARTS}
    digest = hashlib.sha256(whole.ordered_fingerprint.encode())
    digest.update("\0".join(belongs).encode())
    facts = {"dropped": dict(dropped), "source": dict(first_set.source)}
    return LabeledItems(
        "image",
        first_set.name,
        whole,
        np.array(labels),
        classes,
        digest.hexdigest(),
        places,
        facts,
    )


def labeled_images(data: Any, test: Any = None) -> LabeledItems:
    """Read labeled images: a set or a folder with train and test splits, or one that is split
    later."""

    def load(source: Any, **options: Any) -> Any:
        return source if is_items(source) else load_images(source, **options)

    if test is not None:
        return label_parts({"train": load(data), "test": load(test)})
    is_named = isinstance(data, str) and data in IMAGE_SETS
    if is_named and IMAGE_SETS.get(data).splits == ("train", "test"):
        return label_parts({split: load(data, split=split) for split in ("train", "test")})
    if isinstance(data, (str, Path)):
        split_of = {
            "train": "train",
            "validation": "validation",
            "val": "validation",
            "test": "test",
        }
        folders = {name: Path(data) / name for name in split_of if (Path(data) / name).is_dir()}
        if {"train", "test"} <= folders.keys():
            return label_parts({split_of[name]: load(path) for name, path in folders.items()})
    return label_parts({"": load(data)})
