"""Export formats: a file with a `FORMAT` each. Other packages add theirs with entry points of the
group `layerscope.formats`.

To add a format, write a subclass of `ExportFormat` and make an instance of it. A field with a
default is an option: `precision: str = "f16"` is given as `--format mine:precision=f32`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from layerscope.core.plugins import Registry
from layerscope.core.readout import Readout
from layerscope.errors import InvalidValueError, UnknownNameError
from layerscope.exporting.draft import Draft
from layerscope.models import LoadedModel

__all__ = ["FORMATS", "Draft", "ExportFormat"]


@dataclass(frozen=True)
class ExportFormat(ABC):
    """A way to write a cut model.

    `write` adds files to the draft's folder, which already loads with sentence-transformers. They
    go into a subfolder with the format's name.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""

    def check(self) -> None:
        """Raise, before any work, if a library is missing."""
        return

    def check_choice(self, model: LoadedModel, layer: int, readout: Readout) -> None:
        """Raise, before anything is written, for a choice that this format cannot hold."""
        return

    @abstractmethod
    def write(self, draft: Draft) -> Any:
        """Write the files. The returned facts go into layerscope.json and to `card` and `lines`."""

    def card(self, facts: Any) -> str:
        """Return a section of the model card in Markdown, or nothing."""
        return ""

    def lines(self, facts: Any) -> list[str]:
        """Return lines for the terminal."""
        return []


FORMATS: Registry[ExportFormat] = Registry(
    "export format",
    "layerscope.formats",
    name=lambda chosen: chosen.name,
    check=lambda thing: isinstance(thing, ExportFormat),
    package=__name__,
    find=lambda module: [module.FORMAT] if hasattr(module, "FORMAT") else [],
)


def parse_formats(texts: Sequence[str]) -> tuple[ExportFormat, ...]:
    """Return formats from their names and options, such as `gguf` or `mine:precision=f32`, each
    checked for its libraries."""
    formats = tuple(_parse(text) for text in dict.fromkeys(texts))
    for chosen in formats:
        chosen.check()
    return formats


def _parse(text: str) -> ExportFormat:
    name, _, options = text.partition(":")
    chosen = FORMATS.get(name)
    types = {field.name: type(getattr(chosen, field.name)) for field in fields(chosen)}
    values = {}
    for option in filter(None, options.split(",")):
        key, _, value = option.partition("=")
        if key not in types:
            raise UnknownNameError(f"option of the format {name}", key, types)
        try:
            values[key] = value == "true" if types[key] is bool else types[key](value)
        except ValueError:
            raise InvalidValueError(
                f"{name}:{key}= takes a value like {getattr(chosen, key)!r}, not {value!r}."
            ) from None
    return replace(chosen, **values)
