"""What an export format offers. One that is not in this folder comes from an entry point of the group `layerscope.exports`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from layerscope.exporting.draft import Draft


class ExportFormat(ABC):
    """One way to write a cut model. `write` adds files to the draft's folder, which already loads with sentence-transformers."""

    name: ClassVar[str]
    summary: ClassVar[str] = ""

    def check(self, options: Mapping[str, Any]) -> None:
        """Refuse, before any work, what cannot be done."""
        return

    @abstractmethod
    def write(self, draft: Draft, options: Mapping[str, Any]) -> Any:
        """Write the files. What is returned goes into layerscope.json and comes back to `card` and `lines`."""

    def card(self, facts: Any) -> str:
        """A section of the model card, in Markdown; nothing where the format needs none."""
        return ""

    def lines(self, facts: Any) -> list[str]:
        """Lines for the terminal."""
        return []
