"""A corpus: the texts of a run, their source, and what was left out of it."""

from __future__ import annotations

import hashlib
import heapq
import os
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from layerscope.catalogue import Catalogue, Entry
from layerscope.core.files import exists
from layerscope.core.options import shorten
from layerscope.data.hub import HubSpec, locate, read_hub
from layerscope.data.items import ItemKind, Shown, content_key, duplicate_warnings, item_kinds
from layerscope.data.readers import SUFFIXES, read_documents, read_file
from layerscope.data.records import (
    Records,
    Row,
    read_strings,
    read_table,
    table_columns,
)
from layerscope.errors import DataError, InvalidValueError, UnknownNameError, near_misses, one_line
from layerscope.extras import check_zoo

__all__ = ["CORPORA", "CorpusEntry"]

DEFAULT_CORPUS = "lee"
Texts = str | os.PathLike[str] | Iterable[str]
"""What a user gives as texts: a name, a file, a folder, a hub dataset, or the texts themselves."""

_MAX_COLUMNS = 40


@dataclass(frozen=True, kw_only=True)
class CorpusEntry(Entry):
    """A corpus with a short name, which other packages register with an entry point of the group
    `layerscope.corpora`. The suffix of its file decides how it is read."""

    kind: ClassVar[str] = "corpus"
    shelf: ClassVar[str] = "corpora"

    column: str | None = None
    encoding: str | None = None
    clean: Callable[[str], str] | None = None
    """Removes what is not part of the text, such as a label in front of it; a text of which nothing
    remains is left out."""

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
        )

    def read(self, column: str | None, *, whole: bool) -> Records:
        """Return the records of the corpus' file."""
        return read_file(self.fetch(), column=column, encoding=self.encoding, whole=whole)


CORPORA = Catalogue(
    CorpusEntry,
    "layerscope.corpora",
    hint="A file of texts or a hub dataset (org/name) can be given too.",
)


@dataclass(frozen=True)
class Corpus:
    """The texts of a run.

    `fingerprint` identifies the texts, whatever their order. `source` holds facts that fit into
    JSON: kind, path, column, version, license and the like. `dropped` counts what was read
    but left out, by reason.
    """

    kind: ClassVar[str] = "texts"

    texts: Sequence[str]
    name: str
    fingerprint: str
    source: dict[str, Any] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, texts: Iterable[str], name: str = "texts", source: Mapping[str, Any] | None = None
    ) -> Corpus:
        """Return a corpus of exactly these texts.

        >>> Corpus.of(["b", "a"]).fingerprint == Corpus.of(["a", "b"]).fingerprint
        True
        """
        members = tuple(texts)
        digests = [
            hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in members
        ]
        fingerprint = hashlib.sha256(b"".join(sorted(digests))).hexdigest()
        return cls(members, name, fingerprint, dict(source or {}))

    @property
    def keys(self) -> np.ndarray:
        """A number for each text, made from its content."""
        return np.array([content_key(text) for text in self.texts], dtype=np.uint64)

    def describe(self, numbers: np.ndarray) -> Shown:
        """Return the texts with these numbers, and the other columns of their file."""
        texts = [self.texts[int(i)] for i in numbers]
        return Shown(texts, columns_beside(self.source, texts))

    def warnings(self) -> list[str]:
        """Return the reasons why texts were left out, and the number of duplicates."""
        notes = duplicate_warnings(self)
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items())
        return [f"texts left out of the corpus: {reasons}.", *notes] if reasons else notes

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)


def load_corpus(
    spec: Texts = DEFAULT_CORPUS,
    *,
    column: str | None = None,
    limit: int | None = None,
    encoding: str | None = None,
    name: str | None = None,
) -> Corpus:
    """Return texts from a file, a catalogued corpus, a hub dataset (`org/name[:config][/split]`) or
    Python strings.

    - `limit`: use the first N usable texts and stop reading there, so `dropped` counts only what
      was read until then.

    If a name is both a folder and a hub dataset, it means the folder.

    >>> corpus = load_corpus(["one text", "", "another"])
    >>> corpus.texts, corpus.dropped
    (('one text', 'another'), {'empty': 1})
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidValueError(
            f"limit is {limit!r}; it must be a whole number of texts, 1 or more."
        )
    stream = TextStream(spec, column=column, encoding=encoding, once=True)
    with closing(stream.read(whole=False)) as rows:
        texts = [row.text for row in islice(rows, min(limit or sys.maxsize, sys.maxsize))]
    source = {
        **stream.source,
        "limit": limit,
        "read": len(texts) + sum(stream.dropped.values()),
        "duplicates": len(texts) - len(set(texts)),
    }
    return replace(Corpus.of(texts, one_line(name or stream.name), source), dropped=stream.dropped)


item_kinds.add(ItemKind("texts", load_corpus, ("column", "limit"), loader="load_corpus"))


class TextStream:
    """The usable texts of whatever `load_corpus` reads, one at a time and anew whenever they are
    iterated; none is held.

    After a whole pass `dropped` counts what was left out, by reason, and `source` holds facts about
    where the texts are from.

    >>> stream = TextStream(["one text", "", "another"])
    >>> list(stream), list(stream), stream.dropped
    (['one text', 'another'], ['one text', 'another'], {'empty': 1})
    """

    def __init__(
        self,
        spec: Texts,
        *,
        column: str | None = None,
        encoding: str | None = None,
        once: bool = False,
    ) -> None:
        # a generator can be read only once: its texts are held, unless one pass is enough
        self.spec: Any = tuple(spec) if isinstance(spec, Iterator) and not once else spec
        self.column = column
        self.encoding = encoding
        self.name = "texts"
        self.source: dict[str, Any] = {}
        self.dropped: dict[str, int] = {}

    def __iter__(self) -> Iterator[str]:
        return (row.text for row in self.read(whole=False))

    def rows(self) -> Iterator[Row]:
        """Yield the same texts, each with the other columns of its row."""
        return self.read(whole=True)

    def read(self, whole: bool) -> Generator[Row, None, None]:
        """Yield the usable texts, with `whole` beside the other columns of their rows."""
        records = self._open(whole)
        self.name = records.name
        facts = {key: value for key, value in records.facts.items() if value is not None}
        self.source = {"kind": records.kind, **facts}
        dropped: Counter[str] = Counter()
        count = 0
        try:
            for number, row in records.rows():
                place = f"{records.where}, {records.unit} {number}"
                problem = _problem(row.text, place)
                if problem is None:
                    count += 1
                    yield row
                else:
                    dropped[problem] += 1
        finally:  # also if the reader stops early
            self.dropped = dict(dropped)
            records.check_version()
        if not count:
            reasons = ", ".join(f"{number} {reason}" for reason, number in dropped.items())
            raise DataError(
                f"{records.where} holds no usable text: {dropped.total()} read "
                f"({reasons or 'nothing was there'}). Give texts that have words."
            )

    def _open(self, whole: bool) -> Records:
        spec = self.spec
        if not isinstance(spec, str | os.PathLike):
            names = table_columns(spec)
            if names is None:
                return read_strings(spec)
            return read_table(spec, names, self.column, whole)
        place = locate(spec, CORPORA, SUFFIXES)
        if place is None:
            raise _missing(os.fspath(spec))
        if isinstance(place, str):
            return CORPORA.get(place).open(self.column, whole=whole)
        if isinstance(place, HubSpec):
            return read_hub(place, column=self.column, whole=whole)
        if place.is_dir():
            return read_documents(place, self.encoding)
        return read_file(place, column=self.column, encoding=self.encoding, whole=whole)


def _problem(text: Any, place: str) -> str | None:
    """Return the reason to leave a text out, or None. Anything but a string is an error."""
    if text is None:
        return "null"
    if not isinstance(text, str):
        raise DataError(
            f"{place} is not a string: {type(text).__name__} {text!r:.60}. Every text must be a "
            "string; name another column=, or convert the values first."
        )
    if not text.strip():
        return "whitespace" if text else "empty"
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which no tokenizer takes
        return "not Unicode"
    return None


def refuse_missing(data: Any) -> None:
    """Raise an error if a file of texts does not exist, before a model is fetched."""
    text = str(data) if isinstance(data, str | os.PathLike) else ""
    is_file = text.lower().removesuffix(".gz").endswith(SUFFIXES) and "://" not in text[:10]
    if is_file and locate(data, CORPORA, SUFFIXES) is None:
        raise _missing(text)


def _missing(text: str) -> DataError | UnknownNameError:
    """Return the error for a name of texts that stands for nothing."""
    check_zoo("corpus", text)
    path = Path(text).expanduser()
    shown = shorten(text, 100)
    if "://" in text[:10]:
        return DataError(
            f"{shown} is an address, and nothing is downloaded. Fetch it first, such as by `curl "
            "-LO`, and give the file."
        )
    is_path = path.suffix != "" or os.sep in text or text.startswith("~")
    if not is_path and " " not in text:
        hint = (
            "It is not a file here either; a hub dataset is written org/name, and texts themselves "
            "go in a list."
        )
        return UnknownNameError("corpus", shown, CORPORA, hint)
    siblings = path.parent.glob("*") if exists(path.parent) else ()
    near = near_misses(path.name, [item.name for item in siblings], 1)
    hint = f" Did you mean {str(path.parent / near[0])!r}?" if near else ""
    return DataError(
        f"there is no file {shown!r}.{hint} Valid: a file ({', '.join(SUFFIXES)}), a catalogued "
        f"corpus ({', '.join(CORPORA)}) or a hub dataset (org/name); a text itself goes in a list."
    )


def columns_beside(source: Mapping[str, Any], texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return the other columns of the file of some texts, by name: a value per text, from the first
    row that has it.

    `source` is that of the corpus. The file is read in a stream; one that is gone or has changed
    gives nothing.
    """
    if source.get("kind") not in ("file", "folder") or "path" not in source:
        return {}
    members = set(texts)
    rows: dict[str, Mapping[str, Any]] = {}
    stream = TextStream(
        source["path"], column=source.get("column"), encoding=source.get("encoding")
    )
    try:
        for row in stream.rows():
            if row.text in members:
                rows.setdefault(row.text, row.others)
    except Exception:  # of many kinds: other columns than those that were read may be damaged
        return {}
    names = list(dict.fromkeys(name for row in rows.values() for name in row))[:_MAX_COLUMNS]
    columns = {}
    for name in names:
        values = [rows.get(text, {}).get(name) for text in texts]
        if not any(isinstance(value, list | dict) for value in values):
            columns[str(name)] = values
    return columns


# A sample of texts


@dataclass(frozen=True)
class Draw:
    """Distinct texts of a stream in random order, at most as many as were asked for.

    `read` counts all usable texts, `distinct` those that differ. `fingerprint` says which texts the
    stream holds, whatever their order.
    """

    texts: tuple[str, ...]
    read: int
    distinct: int
    fingerprint: str


def draw_texts(stream: Iterable[str], size: int, seed: int = 0) -> Draw:
    """Return the `size` distinct texts whose hash with the seed is lowest, lowest first.

    The draw depends on the seed and on which texts there are, not on their order or their copies,
    and a smaller draw is the beginning of a larger one.

    >>> draw_texts(["b", "a", "b", "c"], 2).texts == draw_texts(["c", "b", "a"], 3).texts[:2]
    True
    """
    lowest: list[tuple[int, str]] = []  # a heap with the highest of the lowest hashes first
    members: set[str] = set()
    keys = array("Q")
    total = 0
    for text in stream:
        keys.append(content_key(text))
        content = text.encode("utf-8", "surrogatepass")
        # a sum does not depend on the order of the texts, and needs no memory
        total += int.from_bytes(hashlib.sha256(content).digest(), "big")
        rank = -int.from_bytes(hashlib.sha256(f"{seed}|0|".encode() + content).digest(), "big")
        if len(lowest) == size and rank <= lowest[0][0]:
            continue
        if text in members:
            continue
        members.add(text)
        if len(lowest) < size:
            heapq.heappush(lowest, (rank, text))
        else:
            members.remove(heapq.heapreplace(lowest, (rank, text))[1])
    distinct = len(np.unique(np.array(keys, dtype=np.uint64)))
    fingerprint = hashlib.sha256(f"{len(keys)}|{total % 2**256:x}".encode()).hexdigest()
    ordered = tuple(text for _, text in sorted(lowest, reverse=True))
    return Draw(ordered, len(keys), distinct, fingerprint)
