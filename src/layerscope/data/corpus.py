"""A corpus: the texts of a run, their source, and what was left out of it."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from layerscope.core.files import exists
from layerscope.core.runs import folder_name
from layerscope.data.catalogue import CORPORA
from layerscope.data.documents import read_documents
from layerscope.data.hub import read_hub
from layerscope.data.items import PackedTexts, Shown, content_key, duplicate_warnings
from layerscope.data.readers import SUFFIXES, read_file
from layerscope.data.records import Records, Row, read_table, table_columns
from layerscope.data.specs import HubSpec, locate
from layerscope.errors import DataError, InvalidValueError, UnknownNameError, near_misses, one_line
from layerscope.extras import check_zoo

if TYPE_CHECKING:
    import numpy as np  # imported where it is used: the command line checks data without it


_WORD = re.compile(r"(?<![^\s(\"'„“«¿¡-])[^\W\d_]{2,20}(?![^\s.,;:!?)\"'”»…’।،؛؟-])")
_UNSPACED = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
)  # Thai to Burmese, Khmer, Japanese, Chinese
_MARKS = ("Mn", "Mc", "Me", "Cf")  # vowel signs and joiners: parts of words, though no letters


@dataclass(frozen=True)
class Corpus:
    """The texts of a run.

    `fingerprint` says which texts, whatever their order. `source` holds facts that fit into JSON:
    kind, path, column, version, license, filters and the like. `dropped` counts what was read but
    left out, by reason.
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
        import numpy as np

        return np.array([content_key(text) for text in self.texts], dtype=np.uint64)

    def packed(self) -> Corpus:
        """Return the same corpus with its texts in one array."""
        return replace(self, texts=PackedTexts.of(self.texts))

    def describe(self, numbers: np.ndarray) -> Shown:
        """Return the texts with these numbers, and the other columns of their file."""
        texts = [self.texts[int(i)] for i in numbers]
        return Shown(texts, columns_beside(self.source, texts))

    def warnings(self) -> list[str]:
        """Return what was left out, and what is there more than once."""
        notes = duplicate_warnings(self)
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items())
        return [f"texts left out of the corpus: {reasons}.", *notes] if reasons else notes

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)


def lack_words(texts: Sequence[str]) -> bool:
    """Return whether most texts are hardly made of words: codes, formulas or sequences, of which a
    part does not mean the same.

    >>> [lack_words([text] * 3) for text in ("CC(=O)O.OCC>>CC(=O)OCC", "My card?", "这张卡什么时候到", "मेरा कार्ड अभी तक नहीं आया।")]
    [True, False, False, False]
    """
    count = 0
    for text in texts:
        start = text[:300]
        if not start.isascii():
            start = "".join(c for c in start if unicodedata.category(c) not in _MARKS)
        if not _UNSPACED.search(start):
            in_words = sum(map(len, _WORD.findall(start)))
            count += 3 * in_words < len("".join(start.split()))
    return count > len(texts) / 2


def load_corpus(
    spec: str | os.PathLike[str] | Iterable[str] = "lee",
    *,
    column: str | None = None,
    limit: int | None = None,
    text_filter: str | None = None,
    encoding: str | None = None,
    name: str | None = None,
) -> Corpus:
    """Return texts from a file, a catalogued corpus, a hub dataset (`org/name[:config][/split]`) or
    Python strings.

    - `limit`: use the first N usable texts and stop reading there, so `dropped` counts only what
      was read until then.
    - `text_filter`: `paper`, `released` or `none`; a catalogued corpus may have its own.

    If a name is both a folder and a hub dataset, it means the folder.

    >>> corpus = load_corpus(["one text", "", "another"])
    >>> corpus.texts, corpus.dropped
    (('one text', 'another'), {'empty': 1})
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidValueError(
            f"limit is {limit!r}; it must be a whole number of texts, 1 or more."
        )
    stream = TextStream(spec, column=column, encoding=encoding, text_filter=text_filter, once=True)
    with closing(stream.read(whole=False)) as values:
        texts = list(islice(values, None if limit is None else min(limit, sys.maxsize)))
    source = {
        **stream.source,
        "filters": {
            "text_filter": stream.text_filter,
            "min_tokens": PAPER_MIN_TOKENS if stream.text_filter == "paper" else None,
        },
        "limit": limit,
        "read": len(texts) + sum(stream.dropped.values()),
        "duplicates": len(texts) - len(set(texts)),
    }
    return replace(Corpus.of(texts, one_line(name or stream.name), source), dropped=stream.dropped)


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
        spec: str | os.PathLike[str] | Iterable[str],
        *,
        column: str | None = None,
        encoding: str | None = None,
        text_filter: str | None = None,
        once: bool = False,
    ) -> None:
        # a generator can be read only once: its texts are held, unless one pass is enough
        self.spec: Any = tuple(spec) if isinstance(spec, Iterator) and not once else spec
        self.column = column
        self.encoding = encoding
        self.text_filter = text_filter
        self.name = "texts"
        self.source: dict[str, Any] = {}
        self.dropped: dict[str, int] = {}

    def __iter__(self) -> Iterator[str]:
        return self.read(whole=False)

    def rows(self) -> Iterator[Row]:
        """Yield the same texts, each with the other columns of its row."""
        return self.read(whole=True)

    def read(self, whole: bool) -> Generator[Any, None, None]:
        """Yield the usable texts, or with `whole` their rows."""
        records = self._open(whole)
        self.name = records.name
        self.text_filter = self.text_filter or records.text_filter or "none"
        facts = {key: value for key, value in records.facts.items() if value is not None}
        self.source = {"kind": records.kind, **facts}
        dropped: Counter[str] = Counter()
        count = 0
        try:
            for item in _usable(records, whole, make_text_filter(self.text_filter), dropped):
                count += 1
                yield item
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
            return _memory(spec) if names is None else read_table(spec, names, self.column, whole)
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


def _memory(texts: object) -> Records:
    if isinstance(texts, bytes | bytearray | Mapping) or not isinstance(texts, Iterable):
        raise DataError(
            f"texts were given as {type(texts).__name__}; give a list of strings, a file, a "
            f"catalogued corpus ({', '.join(CORPORA)}) or a hub dataset (org/name)."
        )
    # null is a missing value in a file; None among texts in Python is a mistake
    values = (_MISSING if text is None else text for text in texts)
    return Records("memory", "texts", "the given texts", "item", enumerate(values))


_MISSING = object()


def _usable(
    records: Records, whole: bool, reason: Callable[[str], str | None], dropped: Counter[str]
) -> Iterator[Any]:
    """Yield the usable texts, or rows with such a text; count the others by reason."""
    for position, item in records.rows(whole):
        text = item.text if whole else item
        if text is None:
            dropped["null"] += 1
            continue
        if not isinstance(text, str):
            shown = "None" if text is _MISSING else f"{type(text).__name__} {text!r:.60}"
            raise DataError(
                f"{records.where}, {records.unit} {position} is not a string: {shown}. "
                "Every text must be a string; name another column=, or convert the values first."
            )
        problem = reason(text) if text.strip() else ("whitespace" if text else "empty")
        if problem is not None:
            dropped[problem] += 1
            continue
        _refuse_surrogates(text, records, position)
        yield item


def _refuse_surrogates(text: str, records: Records, position: int) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{records.where}, {records.unit} {position} is not valid Unicode: lone surrogate "
            f"{text[error.start]!a} at character {error.start}. Repair it, for example with "
            "text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')."
        ) from error


def refuse_missing(data: Any) -> None:
    """Raise an error if a file of texts does not exist, before a model is fetched."""
    if not isinstance(data, str | os.PathLike):
        return
    text = str(data)
    is_address = text.startswith(("http:", "https:"))
    if is_address or not text.lower().removesuffix(".gz").endswith(SUFFIXES):
        return
    if locate(data, CORPORA, SUFFIXES) is None:
        raise _missing(text)


def _missing(text: str) -> DataError | UnknownNameError:
    check_zoo("corpus", text)
    path = Path(text).expanduser()
    names = list(CORPORA)
    shown = text if len(text) <= 100 else text[:97] + "..."
    if "://" in text[:10]:
        name = folder_name(text.split("?")[0])
        return DataError(
            f"{shown} is an address, and nothing is downloaded. Fetch it first (`curl -LO {shown}`) "
            f"and give {name}."
        )
    is_path = path.suffix != "" or os.sep in text or text.startswith("~")
    if not is_path and " " not in text:
        hint = (
            "It is not a file here either; a hub dataset is written org/name, and texts themselves "
            "go in a list."
        )
        return UnknownNameError("corpus", shown, names, hint)
    siblings = []
    if exists(path.parent) and path.parent.is_dir():
        siblings = [item.name for item in path.parent.iterdir()]
    near = [str(path.parent / name) for name in near_misses(path.name, siblings, 3)]
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return DataError(
        f"there is no file {shown!r}.{hint} Valid: a file ({', '.join(SUFFIXES)}), a catalogued corpus "
        f"({', '.join(names)}) or a hub dataset (org/name); a text itself goes in a list."
    )


TEXT_FILTERS = ("none", "paper", "released")
PAPER_MIN_TOKENS = 30
RELEASED_MIN_CHARACTERS = 10


def is_heading(text: str) -> bool:
    """Return whether a text is a WikiText heading: as many equals signs on both sides.

    >>> is_heading(" = = Early life = = \\n"), is_heading("a = b")
    (True, False)
    """
    line = text.strip()
    if len(line) < 2 or line[0] != "=" or line[-1] != "=" or "\n" in line:
        return False
    left = line[: len(line) - len(line.lstrip("= "))]
    right = line[len(line.rstrip("= ")) :]
    return len(left) < len(line) and left.count("=") == right.count("=")


def make_text_filter(name: str) -> Callable[[str], str | None]:
    """Return a function that gives the reason to leave a text out, or None.

    `paper` drops headings and texts of fewer than 30 words; `released`, as in the authors' code,
    drops headings and texts of fewer than 10 characters; `none` drops nothing.

    >>> keep = make_text_filter("released")
    >>> keep(" = Title = "), keep("short"), keep("long enough to keep")
    ('heading', 'short', None)
    """
    if name not in TEXT_FILTERS:
        raise UnknownNameError("text filter", str(name), TEXT_FILTERS)

    def reason(text: str) -> str | None:
        if name == "none":
            return None
        if is_heading(text):
            return "heading"
        if name == "paper":
            return "short" if len(text.split()) < PAPER_MIN_TOKENS else None
        return "short" if len(text) < RELEASED_MIN_CHARACTERS else None

    return reason


_MOST_COLUMNS = 40


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
                rows.setdefault(str(row.text), row.others)
    except Exception:  # of many kinds: other columns than those that were read may be damaged
        return {}
    names = list(dict.fromkeys(name for row in rows.values() for name in row))[:_MOST_COLUMNS]
    columns = {}
    for name in names:
        values = [rows.get(text, {}).get(name) for text in texts]
        if not any(isinstance(value, list | dict) for value in values):
            columns[str(name)] = values
    return columns
