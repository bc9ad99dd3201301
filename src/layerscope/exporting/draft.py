"""An export in the making: everything decided, the folder written beside its place, not yet verified."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.core.readout import Readout, Template, get_template
from layerscope.exporting.folder.cutting import Route
from layerscope.exporting.folder.tokenizing import Baked
from layerscope.models import LoadedModel


@dataclass(frozen=True)
class Draft:
    """A written folder, and what it claims to be."""

    folder: Path
    model: LoadedModel
    layer: int
    readout: Readout
    route: Route
    baked: Baked
    max_length: int
    unit: bool
    mean: np.ndarray | None
    centred_on: str | None
    texts: list[str]

    @property
    def template(self) -> Template:
        """The readout's template."""
        return get_template(self.readout.template)

    def as_job(self, probes: int) -> dict[str, Any]:
        """What the fresh process is told; every token of its probes is compared, so they are not the longest texts."""
        short = [text for text in self.texts if len(text) < 3000]
        return {
            "folder": str(self.folder.resolve()),  # the fresh process works elsewhere
            "texts": self.texts,
            "probes": short[:: max(1, len(short) // probes)][:probes],
            "index": self.route.index,
        }
