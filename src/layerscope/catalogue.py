"""Models, corpora, image sets and tasks that other packages register under a short name.

An entry says what it is, under which license it comes, and where its files are (its `origin`): the
folder of an installed package, or anything else with the methods of `Origin`. Each kind has a
`Catalogue`, which other packages fill through entry points.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from layerscope.core.plugins import Registry
from layerscope.errors import LayerscopeError

__all__ = ["Catalogue", "Entry", "Installed", "Origin", "is_offline"]

MODEL_FORMS = (
    "A model can also be a folder with config.json and safetensors, a .gguf file, or a hub id "
    "org/name[@revision]."
)


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE forbids downloads."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


class Origin(ABC):
    """The origin of an entry's files."""

    @property
    @abstractmethod
    def version(self) -> str:
        """The version that is read, in words."""

    @abstractmethod
    def path(self, entry: Entry) -> Path:
        """Return the place of the fetched files: a folder, or the only file."""

    @abstractmethod
    def is_cached(self, entry: Entry) -> bool:
        """Return whether the files are on this machine, complete."""

    @abstractmethod
    def fetch(self, entry: Entry) -> Path:
        """Download the files, which are not on this machine yet, and return where they are."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One thing with a short name. Each kind of thing has a subclass with the details of its
    kind."""

    kind: ClassVar[str] = "entry"
    shelf: ClassVar[str] = "other"
    """The folder for this kind in the user cache."""

    name: str
    summary: str
    license: str
    origin: Origin
    citation: str = ""

    @property
    def version(self) -> str:
        """The version that is read, in words."""
        return self.origin.version

    @property
    def path(self) -> Path:
        """The place of the fetched files."""
        return self.origin.path(self)

    def is_cached(self) -> bool:
        """Return whether it can be read without the network."""
        return self.origin.is_cached(self)

    def fetch(self) -> Path:
        """Return the place of the files, which are fetched if they are not on this machine."""
        return self.path if self.is_cached() else self.origin.fetch(self)

    def facts(self) -> dict[str, Any]:
        """Return the facts for markers and reports."""
        names = ("name", "summary", "license", "citation")
        return {name: value for name in names if (value := getattr(self, name))}


@dataclass(frozen=True)
class Installed(Origin):
    """A folder of an installed package, or a file of it, ready to read."""

    folder: Callable[[], Path]
    label: str
    installed: Callable[[], bool] = lambda: True

    @property
    def version(self) -> str:
        return self.label

    def path(self, entry: Entry) -> Path:
        return self.folder()

    def is_cached(self, entry: Entry) -> bool:
        return self.installed() and self.folder().exists()

    def fetch(self, entry: Entry) -> Path:
        raise LayerscopeError(
            f"the installed folder of {entry.name} is not complete: {self.folder()}. Install its "
            "package again."
        )


E_co = TypeVar("E_co", bound=Entry)


class Catalogue(Registry[E_co]):
    """The entries of one kind that installed packages register.

    An entry point of `group` names an entry, or a module with a sequence of them called `ENTRIES`
    (one: `ENTRY`).
    """

    def __init__(self, kind: type[E_co], group: str, *, hint: str = "") -> None:
        super().__init__(
            kind.kind,
            group,
            name=lambda entry: entry.name,
            check=lambda thing: isinstance(thing, kind),
            find=_entries,
            hint=hint,
        )


def _entries(module: Any) -> list[Any]:
    entries = list(getattr(module, "ENTRIES", ()))
    if hasattr(module, "ENTRY"):
        entries.append(module.ENTRY)
    return entries
