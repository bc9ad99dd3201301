"""Corpora with a short name, which other packages register with an entry point of the group
`layerscope.corpora`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from layerscope.catalogue import Catalogue, Entry
from layerscope.data.readers import read_file
from layerscope.data.records import Records

__all__ = ["CORPORA", "CorpusEntry"]

DEFAULT_CORPUS = "lee"


@dataclass(frozen=True, kw_only=True)
class CorpusEntry(Entry):
    """One registered corpus. The suffix of its file decides how it is read."""

    kind: ClassVar[str] = "corpus"
    shelf: ClassVar[str] = "corpora"

    column: str | None = None
    encoding: str | None = None
    clean: Callable[[str], str] | None = None
    """Removes what is not part of the text, such as a label in front of it."""
    text_filter: str | None = None

    def open(self, column: str | None, *, whole: bool) -> Records:
        """Return the records of the corpus; missing files are fetched."""
        records = self.read(column or self.column, whole=whole)
        facts = {"license": self.license, "citation": self.citation, "version": self.version}
        return replace(
            records,
            kind="catalogue",
            name=self.name,
            facts={**records.facts, **facts},
            clean=self.clean,
            text_filter=self.text_filter,
        )

    def read(self, column: str | None, *, whole: bool) -> Records:
        """Return the records of the corpus' file."""
        file = self.fetch()
        return read_file(file, column=column, encoding=self.encoding, whole=whole)


CORPORA = Catalogue(
    CorpusEntry,
    "layerscope.corpora",
    hint="A file of texts or a hub dataset (org/name) can be given too.",
)
