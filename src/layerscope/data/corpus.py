"""A corpus: the texts of a run, where they come from, which of them count as prompts and what was
left out."""

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
from layerscope.data import catalogue
from layerscope.data.documents import read_documents
from layerscope.data.hub import read_hub
from layerscope.data.items import PackedTexts, Shown, content_key, duplicate_warnings
from layerscope.data.readers import SUFFIXES, Records, Row, read_file, read_table, table_columns
from layerscope.data.specs import HubSpec, locate
from layerscope.errors import DataError, InvalidValueError, UnknownNameError, near_misses, one_line
from layerscope.extras import check_zoo

if TYPE_CHECKING:
    import numpy as np  # imported where it is used: workers that make views start without it


_WORD = re.compile(r"(?<![^\s(\"'„“«¿¡-])[^\W\d_]{2,20}(?![^\s.,;:!?)\"'”»…’।،؛؟-])")
_UNSPACED = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
)  # Thai to Burmese, Khmer, Japanese, Chinese


@dataclass(frozen=True)
class Corpus:
    """The texts of a run.

    `fingerprint` says which texts, whatever their order. `source` holds facts that fit into JSON:
    kind, path, column, version, license, filters
    and the like. `dropped` counts what was read but left out, by reason.
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
        """A corpus of exactly these texts.

        >>> Corpus.of(["b", "a"]).fingerprint == Corpus.of(["a", "b"]).fingerprint
        True
        """
        texts_read = tuple(texts)
        return cls(texts_read, name, _hash(sorted(_digests(texts_read))), dict(source or {}))

    @property
    def keys(self) -> np.ndarray:
        """A number for each text, made from its content."""
        import numpy as np

        return np.array([content_key(text) for text in self.texts], dtype=np.uint64)

    def packed(self) -> Corpus:
        """The same corpus with its texts in one array."""
        return replace(self, texts=PackedTexts.of(self.texts))

    def describe(self, numbers: np.ndarray) -> Shown:
        """The texts with these numbers, and the other columns of the file that they are from."""
        texts = [self.texts[int(i)] for i in numbers]
        return Shown(texts, columns_beside(self.source, texts))

    def warnings(self) -> list[str]:
        """What was left out, and what is there more than once."""
        what = ", ".join(f"{n} {why}" for why, n in self.dropped.items())
        return ([f"texts left out of the corpus: {what}."] if what else []) + duplicate_warnings(
            self
        )

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)


def lack_words(texts: Sequence[str]) -> bool:
    """Whether most texts are hardly made of words: codes, formulas or sequences, of which a part
    does not mean the same.

    >>> [lack_words([one] * 3) for one in ("CC(=O)O.OCC>>CC(=O)OCC", "My card?", "这张卡什么时候到", "मेरा कार्ड अभी तक नहीं आया।")]
    [True, False, False, False]
    """
    cut = [text[:300] for text in texts]  # the beginning tells
    # vowel signs and joiners are parts of words, though no letters
    texts = [
        t
        if t.isascii()
        else "".join(c for c in t if unicodedata.category(c) not in ("Mn", "Mc", "Me", "Cf"))
        for t in cut
    ]
    sizes = [
        (sum(map(len, _WORD.findall(text))), len("".join(text.split())))
        for text in texts
        if not _UNSPACED.search(text)
    ]
    return sum(3 * words < every for words, every in sizes) > len(texts) / 2


def load_corpus(
    spec: str | os.PathLike[str] | Iterable[str] = "lee",
    *,
    column: str | None = None,
    limit: int | None = None,
    offline: bool = False,
    text_filter: str | None = None,
    encoding: str | None = None,
    name: str | None = None,
) -> Corpus:
    """Texts from a file, a catalogued corpus, a hub dataset (`org/name[:config][/split]`) or Python
    strings.

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
    stream = TextStream(
        spec, column=column, offline=offline, encoding=encoding, text_filter=text_filter, once=True
    )
    with closing(stream._read(whole=False)) as read:
        texts = list(islice(read, None if limit is None else min(limit, sys.maxsize)))
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

    After a whole pass `dropped` counts what was left out, by reason, and `source` says where the
    texts are from.

    >>> stream = TextStream(["one text", "", "another"])
    >>> list(stream), list(stream), stream.dropped
    (['one text', 'another'], ['one text', 'another'], {'empty': 1})
    """

    def __init__(
        self,
        spec: str | os.PathLike[str] | Iterable[str],
        *,
        column: str | None = None,
        offline: bool = False,
        encoding: str | None = None,
        text_filter: str | None = None,
        once: bool = False,
    ) -> None:
        # a generator can be read only once: its texts are held, unless that is what is wanted
        self.spec: Any = tuple(spec) if isinstance(spec, Iterator) and not once else spec
        self._options = (column, encoding, offline)
        self.text_filter = text_filter
        self.name = "texts"
        self.source: dict[str, Any] = {}
        self.dropped: dict[str, int] = {}

    def __iter__(self) -> Iterator[str]:
        return (item for item in self._read(whole=False) if isinstance(item, str))

    def rows(self) -> Iterator[Row]:
        """The same texts, each with the other columns of its row."""
        return (item if isinstance(item, Row) else Row(item, {}) for item in self._read(whole=True))

    def _read(self, whole: bool) -> Generator[Any, None, None]:
        kind, self.name, records, own_filter = _open(self.spec, *self._options, whole=whole)
        self.text_filter = self.text_filter or own_filter or "none"
        dropped: Counter[str] = Counter()
        count = 0
        try:
            for text in _usable(records, make_text_filter(self.text_filter), dropped):
                count += 1
                yield text
        finally:  # also where no more texts are asked for
            # a file tells its column, and what separates its fields, when it is read
            facts = {key: value for key, value in records.facts.items() if value is not None}
            self.source = {"kind": kind} | facts
            self.dropped = dict(dropped)
            records.check_version()
        if not count:
            raise _no_texts(records.where, dropped)


def _no_texts(where: str, dropped: Counter[str]) -> DataError:
    left_out = ", ".join(f"{count} {why}" for why, count in dropped.items()) or "nothing was there"
    return DataError(
        f"{where} holds no usable text: {dropped.total()} read ({left_out}). Give texts that have words."
    )


def _open(
    spec: Any, column: str | None, encoding: str | None, offline: bool, whole: bool = False
) -> tuple[str, str, Records, str | None]:
    """What a spec names, or the texts themselves: kind, name, records and the filter that belongs
    to them."""
    if not isinstance(spec, str | os.PathLike):
        names = table_columns(spec)
        return (
            "memory",
            "texts",
            _memory(spec) if names is None else read_table(spec, names, column, whole),
            None,
        )
    found = locate(spec, catalogue.CORPORA, SUFFIXES)
    if isinstance(found, str):
        return _open_catalogued(catalogue.CORPORA.get(found), column, offline, whole)
    if isinstance(found, HubSpec):
        return "hub", str(found), read_hub(found, column=column, offline=offline, whole=whole), None
    if found is None:
        raise _missing(os.fspath(spec))
    if found.is_dir():
        return "folder", found.name, read_documents(found, encoding, whole), None
    return "file", found.name, read_file(found, column=column, encoding=encoding, whole=whole), None


def _open_catalogued(
    entry: catalogue.CorpusEntry, column: str | None, offline: bool, whole: bool
) -> tuple[str, str, Records, str | None]:
    records = entry.records(column, offline=offline, whole=whole)
    records.facts |= {
        "license": entry.license,
        "citation": entry.citation,
        "version": entry.version,
    }
    return "catalogue", entry.name, records, entry.text_filter


def _memory(texts: object) -> Records:
    if isinstance(texts, bytes | bytearray | Mapping) or not isinstance(texts, Iterable):
        raise DataError(
            f"texts were given as {type(texts).__name__}; give a list of strings, a file, a catalogued corpus "
            f"({', '.join(catalogue.CORPORA)}) or a hub dataset (org/name)."
        )
    # null is a missing value in a file; in Python None among the texts is a mistake, so it is
    # reported.
    values = (_Missing if value is None else value for value in texts)
    return Records(enumerate(values), "the given texts", "item")


_Missing = object()


def _usable(
    records: Records, reason: Callable[[str], str | None], dropped: Counter[str]
) -> Iterator[Any]:
    """The usable texts, or rows with such a text, one at a time; the others are counted by
    reason."""
    for position, item in records.items:
        value = item.text if isinstance(item, Row) else item
        if value is None:
            dropped["null"] += 1
            continue
        if not isinstance(value, str):
            shown = "None" if value is _Missing else f"{type(value).__name__} {value!r:.60}"
            raise DataError(
                f"{records.where}, {records.unit} {position} is not a string: {shown}. "
                f"Every text must be a string; name another column=, or convert the values first."
            )
        why = reason(value) if value.strip() else ("whitespace" if value else "empty")
        if why is not None:
            dropped[why] += 1
            continue
        _refuse_surrogates(value, records, position)
        yield item


def _refuse_surrogates(text: str, records: Records, position: int) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{records.where}, {records.unit} {position} is not valid Unicode: lone surrogate {text[error.start]!a} at "
            f"character {error.start}. Repair it, for example with text.encode('utf-16', 'surrogatepass')."
            f"decode('utf-16', 'replace')."
        ) from error


def refuse_missing(data: Any) -> None:
    """An error for a file of texts that is not there: it is told before a model is fetched."""
    if not isinstance(data, str | os.PathLike) or not str(data).lower().removesuffix(
        ".gz"
    ).endswith(SUFFIXES):
        return
    if (
        not str(data).startswith(("http:", "https:"))
        and locate(data, catalogue.CORPORA, SUFFIXES) is None
    ):
        raise _missing(str(data))


def _missing(text: str) -> DataError | UnknownNameError:
    check_zoo("corpus", text)
    path = Path(text).expanduser()
    names = list(catalogue.CORPORA)
    is_path = path.suffix != "" or os.sep in text or text.startswith("~")
    shown = text if len(text) <= 100 else text[:97] + "..."
    if "://" in text[:10]:
        name = folder_name(text.split("?")[0])
        return DataError(
            f"{shown} is an address, and nothing is downloaded. Fetch it first (`curl -LO {shown}`) and give {name}."
        )
    if not is_path and " " not in text:
        hint = "It is not a file here either; a hub dataset is written org/name, and texts themselves go in a list."
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


def _digests(texts: Iterable[str]) -> list[bytes]:
    return [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]


def _hash(digests: Iterable[bytes]) -> str:
    total = hashlib.sha256()
    for digest in digests:
        total.update(digest)
    return total.hexdigest()


TEXT_FILTERS = ("none", "paper", "released")
PAPER_MIN_TOKENS = 30
RELEASED_MIN_CHARACTERS = 10


def is_heading(text: str) -> bool:
    """Whether a text is a WikiText heading.

    >>> is_heading(" = = Early life = = \\n"), is_heading("a = b")
    (True, False)
    """
    line = text.strip()
    if len(line) < 2 or line[0] != "=" or line[-1] != "=" or "\n" in line:
        return False
    # A heading has as many signs on the right as on the left; "= x ==" is not one.
    left = line[: len(line) - len(line.lstrip("= "))]
    right = line[len(line.rstrip("= ")) :]
    return len(left) < len(line) and left.count("=") == right.count("=")


def make_text_filter(name: str) -> Callable[[str], str | None]:
    """A function that says why a text is left out, or None if it is kept.

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
        short = (
            len(text.split()) < PAPER_MIN_TOKENS
            if name == "paper"
            else len(text) < RELEASED_MIN_CHARACTERS
        )
        return "short" if short else None

    return reason


_MOST_COLUMNS = 40


def columns_beside(source: Mapping[str, Any], texts: Sequence[str]) -> dict[str, list[Any]]:
    """The other columns of the file that texts are from, by name: a value per text, of the first
    row that has it.

    `source` is what reading the file told of it. The file is read in a stream; one that is gone or
    has changed gives nothing.
    """
    if source.get("kind") not in ("file", "folder") or "path" not in source:
        return {}
    wanted, found = set(texts), dict[str, Mapping[str, Any]]()
    try:
        for row in TextStream(
            source["path"], column=source.get("column"), encoding=source.get("encoding")
        ).rows():
            if row.text in wanted:
                found.setdefault(str(row.text), row.others)
    except Exception:  # of many kinds: other columns than those that were read may be damaged
        return {}
    names = list(dict.fromkeys(name for row in found.values() for name in row))[:_MOST_COLUMNS]
    values = {name: [found.get(text, {}).get(name) for text in texts] for name in names}
    return {
        str(name): some
        for name, some in values.items()
        if not any(isinstance(value, list | dict) for value in some)
    }
