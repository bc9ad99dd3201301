"""Corpora with a short name, which other packages register with an entry point of the group
`layerscope.corpora`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from layerscope.catalogue import Catalogue, Entry
from layerscope.data.readers import Records, Row, read_file

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

    def records(self, column: str | None, *, offline: bool, whole: bool) -> Records:
        """Return the texts, or with `whole` each with the other columns of its row; what is missing
        is fetched."""
        records = read_file(
            self.fetch(offline=offline),
            column=column or self.column,
            encoding=self.encoding,
            whole=whole,
        )
        clean = self.clean
        if clean is not None:

            def tidy(value: object) -> object:
                return clean(value) if isinstance(value, str) else value

            items = records.items
            records.items = (
                (n, Row(tidy(one.text), one.others) if isinstance(one, Row) else tidy(one))
                for n, one in items
            )
        return records


CORPORA = Catalogue(
    CorpusEntry,
    "layerscope.corpora",
    hint="A file of texts or a hub dataset (org/name) can be given too.",
)
