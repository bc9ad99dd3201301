"""Scikit-learn's digits: 1,797 handwritten digits of 8 × 8 pixels, which come with scikit-learn."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from layerscope.catalogue import Installed
from layerscope.data.images.imageset import ImageSetEntry
from layerscope.errors import MissingExtraError


def read(split: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Everything, or the first 1,437 (`train`) and the last 360 (`test`)."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    # 17 levels of gray, 0 to 16
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)
    labels = digits.target.astype(np.int64)
    part = {"all": slice(None), "train": slice(0, 1437), "test": slice(1437, None)}[split]
    return images[part], labels[part]


def folder() -> Path:
    """Where scikit-learn keeps them."""
    try:
        import sklearn.datasets
    except ImportError:
        raise MissingExtraError("the image set `digits` (it comes with scikit-learn)", "vision") from None

    return Path(sklearn.datasets.__file__).parent / "data"


ENTRY = ImageSetEntry(
    name="digits",
    summary="1,797 handwritten digits, 8 × 8, gray, 10 classes (all, or train and test)",
    license="CC-BY-4.0 (UCI), carried by scikit-learn (BSD-3-Clause)",
    citation="Alpaydin & Kaynak (1998), Optical Recognition of Handwritten Digits, UCI Machine Learning Repository",
    origin=Installed(folder, "scikit-learn's load_digits", installed=lambda: find_spec("sklearn") is not None),
    splits=("all", "train", "test"),
    classes=tuple(str(k) for k in range(10)),
    read=read,
)
