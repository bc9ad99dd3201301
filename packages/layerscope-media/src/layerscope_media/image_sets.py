"""Image sets with a name; other packages add theirs as entry points `layerscope.images`.

The one set here is scikit-learn's digits: 1,797 handwritten digits of 8 × 8 pixels.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from layerscope.catalogue import Catalogue, Installed
from layerscope.errors import DataError
from layerscope_media.imageset import ImageSet, ImageSetEntry


def _read_digits(split: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return images and labels: all, the first 1,437 (`train`) or the last 360 (`test`)."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    # 17 levels of gray, 0 to 16
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)
    labels = digits.target.astype(np.int64)
    rows = {"all": slice(None), "train": slice(0, 1437), "test": slice(1437, None)}[split]
    return images[rows], labels[rows]


def _digits_folder() -> Path:
    """Return the folder of scikit-learn's data."""
    import sklearn.datasets

    return Path(sklearn.datasets.__file__).parent / "data"


DIGITS = ImageSetEntry(
    name="digits",
    summary="1,797 handwritten digits, 8 × 8, gray, 10 classes (all, or train and test)",
    license="CC-BY-4.0 (UCI), carried by scikit-learn (BSD-3-Clause)",
    citation="Alpaydin & Kaynak (1998), Optical Recognition of Handwritten Digits, UCI Machine "
    "Learning Repository",
    origin=Installed(_digits_folder, "scikit-learn's load_digits"),
    splits=("all", "train", "test"),
    classes=tuple(str(k) for k in range(10)),
    read=_read_digits,
)


IMAGE_SETS = Catalogue(ImageSetEntry, "layerscope.images")
IMAGE_SETS.add(DIGITS)


def read_set(name: str, split: str | None) -> ImageSet:
    """Return the images of a set in the catalogue, of its first split if none is named."""
    entry = IMAGE_SETS.get(name)
    chosen = split or entry.splits[0]
    if chosen not in entry.splits:
        raise DataError(f"{name} has no split {chosen!r}. It has: {', '.join(entry.splits)}.")
    images, labels = entry.read(chosen, entry.fetch())
    facts = {
        "kind": "catalogue",
        "split": chosen,
        "license": entry.license,
        "citation": entry.citation,
        "version": entry.version,
    }
    names = [f"{name} {chosen} {i}" for i in range(len(images))]
    return ImageSet.of(list(images), labels, entry.classes, name, facts, names, ())
