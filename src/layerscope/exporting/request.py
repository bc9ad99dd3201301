"""What `export` and `improve` ask for, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from layerscope.core.heads import Head
from layerscope.core.readout import Readout
from layerscope.exporting.draft import Side
from layerscope.exporting.formats import ExportFormat
from layerscope.models import LoadedModel

DEFAULT_MAX_LENGTH = 256  # the evaluation's


@dataclass(frozen=True)
class ExportRequest:
    """What to export: a layer of a model, how it is read, and what stands beside it in the folder.

    - `max_length`, `longer`: texts are cut to that many tokens; a folder whose template would be
      cut may read longer texts.
    - `unit`: vectors are scaled to length 1.
    - `head`: what is done to pooled vectors. Or `center_on`: the texts whose mean is subtracted,
      and words for them.
    - `texts`: the texts to verify on.
    - `sides`: how queries and documents are read, where that differs. Their templates end alike.
    - `why`, `evidence`: how the choice was made, for the card and layerscope.json.
    """

    model: LoadedModel
    layer: int
    readout: Readout
    texts: tuple[str, ...]
    max_length: int = DEFAULT_MAX_LENGTH
    longer: bool = False
    unit: bool = False
    head: Head | None = None
    center_on: tuple[list[str], str] | None = None
    sides: tuple[Side, ...] = ()
    formats: tuple[ExportFormat, ...] = ()
    license: str = ""
    why: str = ""
    evidence: dict[str, Any] | None = None
