"""Images that were found but not yet looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from layerscope.data.images.decoding import Item


@dataclass(frozen=True)
class Found:
    """Items with their names and labels, and facts about where they come from."""

    kind: str
    name: str
    where: str
    items: Sequence[Item]
    names: Sequence[str]
    labels: Sequence[int] | np.ndarray | None = None
    classes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
