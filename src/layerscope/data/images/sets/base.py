"""What a catalogued image set declares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from layerscope.catalogue import Entry


@dataclass(frozen=True, kw_only=True)
class ImageSetEntry(Entry):
    """One catalogued set. `read(split, folder)` gives its images (N, H, W[, 3]) uint8 and its labels (N,)."""

    kind: ClassVar[str] = "image set"
    shelf: ClassVar[str] = "images"

    splits: tuple[str, ...]
    classes: tuple[str, ...]
    read: Callable[[str, Path], tuple[np.ndarray, np.ndarray]]
