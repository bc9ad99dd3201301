"""What a catalogued image set declares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class ImageSetEntry:
    """One catalogued set. `read(split, offline)` gives its images (N, H, W[, 3]) uint8 and its labels (N,)."""

    name: str
    summary: str
    licence: str
    citation: str
    version: str
    splits: tuple[str, ...]
    classes: tuple[str, ...]
    read: Callable[[str, bool], tuple[np.ndarray, np.ndarray]]
    is_cached: Callable[[], bool]
    fetch: Callable[[], Path]
    """Make sure that it is on this machine, and say where."""
