"""Models with a short name, which other packages register: an entry point of the group
`layerscope.models` names a module with `ENTRIES`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from layerscope.catalogue import Catalogue, Entry

__all__ = ["ModelEntry"]


@dataclass(frozen=True, kw_only=True)
class ModelEntry(Entry):
    """One catalogue model; `summary` says what kind of model it is and how it was trained or
    stored."""

    kind: ClassVar[str] = "model"
    shelf: ClassVar[str] = "models"

    title: str
    parameters: int
    blocks: int
    width: int
    quantization: str | None = None

    def facts(self) -> dict[str, Any]:
        """For the marker of its folder."""
        return {**super().facts(), "title": self.title, "quantization": self.quantization}


MODELS = Catalogue(ModelEntry, "layerscope.models")


def catalogue() -> dict[str, ModelEntry]:
    """Every registered model by name."""
    return MODELS.all()
