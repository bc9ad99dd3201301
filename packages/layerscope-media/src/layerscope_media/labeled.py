"""Labeled images and their parts, for probes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.data import PARTS, LabeledItems, is_items
from layerscope.errors import DataError
from layerscope_media.image_sets import IMAGE_SETS
from layerscope_media.imageset import ImageSet
from layerscope_media.load import load_images


def label_parts(sets: dict[str, Any]) -> LabeledItems:
    """Image sets with labels by split; the split "" is everything, to be split later.

    An image of the test part that also is in training, pixel by pixel, is left out of training.
    """
    for part, images in sets.items():
        if images.labels is None:
            raise DataError(
                f"{images.name} ({part or 'all'}) has no labels. A probe needs class folders or a label column."
            )
    classes = tuple(dict.fromkeys(c for images in sets.values() for c in images.classes))
    items: list[Any] = []
    names: list[str] = []
    digests: list[bytes] = []
    labels: list[int] = []
    belongs: list[str] = []
    dropped: dict[str, int] = {}
    seen: set[int] = set()
    for part in ("test", "validation", "train", ""):
        images = sets.get(part)
        if images is None:
            continue
        for why, count in images.dropped.items():
            dropped[why] = dropped.get(why, 0) + count
        fresh = [
            i
            for i, key in enumerate(images.keys.tolist())
            if part in ("test", "") or key not in seen
        ]
        if len(fresh) < len(images):
            dropped["also in another part"] = (
                dropped.get("also in another part", 0) + len(images) - len(fresh)
            )
        seen.update(images.keys.tolist())
        items += [images.items[i] for i in fresh]
        names += [images.names[i] for i in fresh]
        digests += [images.digests[i] for i in fresh]
        labels += [classes.index(images.classes[int(images.labels[i])]) for i in fresh]
        belongs += [part] * len(fresh)
    first = next(iter(sets.values()))
    whole = ImageSet.of(
        items, np.array(labels), classes, first.name, dict(first.source), names, digests
    )
    parts = {p: np.flatnonzero([b == p for b in belongs]) for p in PARTS}
    digest = hashlib.sha256(whole.ordered_fingerprint.encode())
    digest.update("\0".join(belongs).encode())
    facts = {"dropped": dropped, "source": dict(first.source)}
    return LabeledItems(
        "image",
        first.name,
        whole,
        np.array(labels),
        classes,
        digest.hexdigest(),
        parts,
        facts,
    )


def labeled_images(data: Any, test: Any = None) -> LabeledItems:
    """Labeled images: a set or a folder with its own train and test parts, or one that is split
    later."""

    def load(what: Any, **more: Any) -> Any:
        return what if is_items(what) else load_images(what, **more)

    if test is not None:
        return label_parts({"train": load(data), "test": load(test)})
    if (
        isinstance(data, str)
        and data in IMAGE_SETS
        and IMAGE_SETS.get(data).splits == ("train", "test")
    ):
        return label_parts({part: load(data, split=part) for part in ("train", "test")})
    if (
        isinstance(data, (str, Path))
        and (Path(data) / "train").is_dir()
        and (Path(data) / "test").is_dir()
    ):
        named = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}
        return label_parts(
            {
                part: load(Path(data) / sub)
                for sub, part in named.items()
                if (Path(data) / sub).is_dir()
            }
        )
    return label_parts({"": load(data)})
