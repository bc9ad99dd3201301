"""Rows as they come from a file, a table in memory or the hub, the column of the texts, and whether
they are words."""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from layerscope.core.options import shorten
from layerscope.errors import DataError, near_misses

__all__ = ["Records", "as_label"]

PREFERRED_COLUMNS = ("text", "sentence", "content")
PREVIEW_ROWS = 100
"""Number of first rows that tell columns of text from columns of numbers."""

Values = Iterator[tuple[int, Any]]
"""Numbers of lines or rows, and the value of each: a text, or a row as a dictionary."""


class Row(NamedTuple):
    """A text with the other columns of its row, by name."""

    text: Any
    others: dict[str, Any]


@dataclass(frozen=True)
class Records:
    """Values in reading order, and facts about their source.

    `column` names the column of the texts; None if the values are texts. `clean` removes what is
    not part of a text; a text of which nothing is left is left out. `check_version` raises an error
    if a file was written to since reading began.
    """

    kind: str
    name: str
    where: str
    unit: str
    values: Values
    column: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    check_version: Callable[[], None] = lambda: None
    clean: Callable[[str], str] | None = None

    def rows(self) -> Iterator[tuple[int, Row]]:
        """Yield the number and the row of each text."""
        for number, value in self.values:
            row = Row(value, {})
            if self.column is not None and value != "":  # a blank line has no columns
                row = self._split(number, value, self.column)
            if self.clean is not None and isinstance(row.text, str):
                row = row._replace(text=self.clean(row.text))
            yield number, row

    def _split(self, number: int, value: Any, column: str) -> Row:
        """Return the text in a column, and the other columns."""
        place = f"{self.where}, {self.unit} {number}"
        if not isinstance(value, dict):
            raise DataError(
                f"{place} is not an object with the key {column!r}: {shorten(repr(value), 60)}."
            )
        others = {key: item for key, item in value.items() if key != column}
        if column in value:
            return Row(value[column], others)
        if not has_inner(value, column):
            raise DataError(
                f"{place} has no {column!r}. It has: {', '.join(map(repr, value)) or 'nothing'}."
            )
        return Row(_inner_value(value, column), others)


def version_check(*paths: Path) -> Callable[[], None]:
    """Return a function that raises an error if a file was written to since this call."""

    def versions() -> list[tuple[int, int, int]]:
        stats = [path.stat() for path in paths if path.exists()]
        return [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]

    before = versions()

    def check() -> None:
        if versions() != before:
            raise DataError(changed(paths[0] if len(paths) == 1 else paths[0].parent))

    return check


def changed(source: object) -> str:
    """Return the message for texts that changed while they were read."""
    return (
        f"{source} changed while it was read. Run the same command again when nothing writes to it."
    )


def _inner_value(value: Any, name: str) -> Any:
    """Return the value under a name such as `doc.text`, which leads into inner objects."""
    for key in name.split("."):
        value = value[key]
    return value


def has_inner(value: Any, name: str) -> bool:
    """Return whether there is a value under a name such as `doc.text`."""
    try:
        _inner_value(value, name)
    except (KeyError, TypeError):
        return False
    return True


def choose_column(column: str | None, columns: Mapping[str, bool], where: str) -> str:
    """Return the column to read: the one named, else one with a usual name, else the only one that
    holds text.

    `columns` says of each column whether it holds strings.

    >>> choose_column(None, {"id": False, "body": True}, "posts.csv")
    'body'
    """
    names = ", ".join(map(repr, columns)) or "none"
    strings = [name for name, is_string in columns.items() if is_string]
    if column in strings:
        return column
    if column in columns:
        texts = ", ".join(map(repr, strings)) or "none"
        raise DataError(f"{where}: column {column!r} does not hold text. Columns that do: {texts}.")
    if column is not None:
        near = near_misses(column, columns)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        raise DataError(f"{where} has no column {column!r}.{guess} Columns: {names}.")
    by_name = {name.strip().lower(): name for name in reversed(strings)}
    usual = [by_name[name] for name in PREFERRED_COLUMNS if name in by_name]
    if usual or len(strings) == 1:
        return (usual or strings)[0]
    raise DataError(
        f"{where} has {len(strings)} columns of text. Name the one to read with column=. Columns: "
        f"{names}."
    )


def read_strings(texts: Any) -> Records:
    """Return the records of a list, or of any other iterable, of strings."""
    if isinstance(texts, bytes | bytearray | Mapping) or not isinstance(texts, Iterable):
        raise DataError(
            f"texts were given as {type(texts).__name__}; give a list of strings, a file, the "
            "name of a corpus or a hub dataset (org/name)."
        )
    return Records("memory", "texts", "the given texts", "item", enumerate(texts))


def table_columns(table: Any) -> list[str] | None:
    """Return the columns of a table in memory (pandas, Polars, `datasets`); None for anything
    else."""
    names = getattr(table, "column_names", None)
    if isinstance(names, dict):
        raise DataError(
            f"a dataset with several splits was given ({', '.join(names)}). Give one: "
            f"dataset[{next(iter(names))!r}]."
        )
    if names is None and hasattr(table, "columns") and hasattr(table, "__getitem__"):
        names = table.columns
    return None if names is None or isinstance(names, str) else [str(name) for name in names]


def read_table(table: Any, names: list[str], column: str | None, whole: bool = False) -> Records:
    """Return the records of a table in memory; missing values are null."""
    where = f"the given {type(table).__name__}"

    def cells(name: str) -> Iterator[object]:
        for value in table[name]:
            yield None if is_missing(value) and not isinstance(value, str) else value

    def holds_text(name: str) -> bool:
        preview = itertools.islice(cells(name), PREVIEW_ROWS)
        return isinstance(next((value for value in preview if value is not None), None), str)

    kinds = {name: name == column or holds_text(name) for name in names}
    chosen = choose_column(column, kinds, where)
    columns = names if whole else [chosen]
    rows = zip(*(cells(name) for name in columns), strict=True)
    values = enumerate(dict(zip(columns, row, strict=True)) for row in rows)
    return Records("memory", "texts", where, "row", values, chosen, {"column": chosen})


class ExactFloat(float):
    """A number of a JSON file, written as it was spelled there."""

    spelling: str

    def __new__(cls, spelling: str) -> ExactFloat:
        """Return the number, and remember its spelling."""
        number = super().__new__(cls, spelling)
        number.spelling = spelling
        return number

    def __repr__(self) -> str:
        """Return the spelling."""
        return self.spelling


def is_missing(value: Any) -> bool:
    """Return whether a cell holds nothing: null, not a number, or no letter.

    >>> [is_missing(value) for value in (None, float("nan"), " ", 0, "no")]
    [True, True, True, False, False]
    """
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, float) and math.isnan(value))


def as_label(value: Any, where: str) -> str:
    """Return a class as a text. Lists, objects and missing values are refused."""
    if is_missing(value) or isinstance(value, list | dict | tuple | set):
        raise DataError(f"{where}: a label is a text or a number, not {value!r:.60}.")
    return str(value)


# Texts that are hardly words


_WORD = re.compile(r"(?<![^\s(\"'„“«¿¡-])[^\W\d_]{2,20}(?![^\s.,;:!?)\"'”»…’।،؛؟-])")
# Thai to Burmese, Khmer, Japanese, Chinese
_UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
_MARKS = ("Mn", "Mc", "Me", "Cf")  # vowel signs and joiners: parts of words, though no letters


def lack_words(texts: Sequence[str]) -> bool:
    """Return whether most texts are hardly made of words: codes, formulas or sequences, of which a
    part does not mean the same.

    >>> texts = ["CC(=O)O.OCC>>CC(=O)OCC", "My card?", "这张卡什么时候到", "मेरा कार्ड अभी तक नहीं आया।"]
    >>> [lack_words([text] * 3) for text in texts]
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
