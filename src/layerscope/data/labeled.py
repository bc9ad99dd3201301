"""Items with labels, which probes are trained on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from layerscope.data.items import Items

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class LabeledItems:
    """Items with class numbers.

    `parts` holds the positions of the splits that the data come with; others are drawn later.
    """

    kind: str
    name: str
    items: Items | Any  # None where prepared inputs are read instead
    labels: np.ndarray
    classes: tuple[str, ...]
    fingerprint: str
    parts: dict[str, np.ndarray] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        some = {part: positions for part, positions in self.parts.items() if len(positions)}
        object.__setattr__(self, "parts", some)

    def __len__(self) -> int:
        return len(self.labels)
