"""Reading texts and tables out of files: `.txt`, `.jsonl`, `.json`, `.csv`, `.tsv` (each also
`.gz`) and `.parquet`."""

from __future__ import annotations

import codecs
import csv
import gzip
import itertools
import json
import logging
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from layerscope.core.formatting import shorten
from layerscope.core.json import json_problem
from layerscope.errors import DataError, near_misses, one_line
from layerscope.extras import require

__all__ = ["Records", "as_label"]

PREFERRED_COLUMNS = ("text", "sentence", "content")
PREVIEW_ROWS = 100
"""How many rows of a table are looked at to tell columns of text from columns of numbers."""
DELIMITERS = (",", ";", "\t", "|")
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

log = logging.getLogger("layerscope")


class Row(NamedTuple):
    """A text with the other columns of its row, by name."""

    text: object
    others: dict[str, Any]


@dataclass
class Records:
    """Values in reading order, each with its position, and what is known of where they come from.

    With `whole` each value is a `Row`, if the source has columns. `check_version` raises an error
    if the file was written to since reading began.
    """

    items: Iterator[tuple[int, object]]
    where: str
    unit: str
    facts: dict[str, Any] = field(default_factory=dict)
    whole: bool = False
    check_version: Callable[[], None] = lambda: None

    def cell(self, row: Mapping[str, Any], column: str, text: object) -> object:
        """The text of a row, or the whole of it."""
        return (
            Row(text, {name: value for name, value in row.items() if name != column})
            if self.whole
            else text
        )


def read_file(
    path: Path, *, column: str | None = None, encoding: str | None = None, whole: bool = False
) -> Records:
    """The records of one file. Its format is told by its suffix; nothing is read until the records
    are."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes[-1:] == [".gz"]
    suffix = (suffixes[:-1] if packed else suffixes)[-1:]
    kind = suffix[0] if suffix else ""
    if kind not in SUFFIXES or (packed and kind in (".parquet", ".xlsx")):
        raise DataError(
            f"{path} has the suffix {''.join(suffixes[-2:]) or '(none)'!r}, which is not one that can be read. "
            f"Valid: {', '.join(SUFFIXES)}; all but .parquet and .xlsx also with .gz. Rename or convert the file."
        )
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty. Give a file with at least one text.")
    facts: dict[str, Any] = {
        "path": str(path.resolve()),
        "format": kind[1:],
        "encoding": codec(encoding),
    }
    if kind == ".txt" and column is not None:
        raise DataError(
            f"{path} is plain text, one prompt per line: it has no column {column!r}. Leave column= out."
        )
    unit = "row" if kind in (".parquet", ".xlsx") else "line"
    records = Records(iter(()), str(path), unit, facts, whole, version_check(path))
    if kind == ".parquet":
        records.items = _parquet_texts(path, column, records)
    else:
        records.items = _texts(_READERS[kind](path, records), column, records, _HOLDS_TEXT[kind])
    return records


def version_check(*paths: Path) -> Callable[[], None]:
    """Return a function that raises an error if one of the files was written to since this call."""

    def versions() -> list[tuple[int, ...]]:
        stats = [path.stat() for path in paths]
        return [(one.st_ino, one.st_size, one.st_mtime_ns) for one in stats]

    before = versions()

    def check() -> None:
        try:
            same = versions() == before
        except OSError:
            same = False
        if not same:
            raise DataError(changed(paths[0] if len(paths) == 1 else paths[0].parent))

    return check


def changed(what: object) -> str:
    """Return the message for texts that changed while they were read."""
    return (
        f"{what} changed while it was read. Run the same command again when nothing writes to it."
    )


class ExactFloat(float):
    """A number of a JSON file that is written as it was spelled there."""

    spelling: str

    def __new__(cls, spelling: str) -> ExactFloat:
        number = super().__new__(cls, spelling)
        number.spelling = spelling
        return number

    def __repr__(self) -> str:
        return self.spelling


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """A file that cannot be read at all becomes an error that says so."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} is not a whole gzip file ({error}). Copy or download it again."
        ) from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror or error}. Check the file and its rights."
        ) from error


def codec(encoding: str | None) -> str:
    try:
        return codecs.lookup(encoding or "utf-8").name
    except LookupError as error:
        raise DataError(
            f"unknown encoding {encoding!r}. Valid: utf-8, latin-1, cp1252, utf-16 and so on."
        ) from error


def text_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yield decoded lines with their line ends. Only a newline ends a line: U+2028 and the like are
    part of a text."""
    opened: Any = gzip.open if path.suffix.lower() == ".gz" else open
    decoder = "utf-8-sig" if encoding == "utf-8" else encoding  # it leaves out a byte order mark
    number = 0
    with _readable(path), opened(path, "rt", encoding=decoder, newline="\n") as stream:
        try:
            for number, line in enumerate(stream, 1):  # noqa: B007
                yield line
        except UnicodeDecodeError as error:
            before, byte = error.object[: error.start], error.object[error.start]
            marked = number == 0 and error.object[:2] in _MARKS
            guess = "utf-16" if marked else "latin-1"
            raise DataError(
                f"{path} is not {encoding if encoding != 'utf-8' else 'UTF-8'}: byte 0x{byte:02x} in line "
                f"{number + before.count(10) + 1}. Say what it is, such as encoding={guess!r}, or "
                f"convert it: iconv -f {guess.upper()} -t UTF-8."
            ) from error
        except UnicodeError as error:
            raise DataError(
                f"{path} is not {encoding}: {error}. Give another encoding=."
            ) from error


def _texts(
    values: Iterator[tuple[int, Any]],
    column: str | None,
    records: Records,
    is_text: Callable[[Any], bool],
) -> Iterator[tuple[int, object]]:
    """Yield the text of every value that is one, and of every row (a dictionary) that of its
    column.

    Without a column it is looked for among those that hold texts in the first rows.
    """
    preview = list(itertools.islice(values, PREVIEW_ROWS))
    rows = [value for _, value in preview if isinstance(value, dict)]
    chosen = column
    if rows and not (column and _inner(rows[0], column)):
        holds = {
            name: column is not None or any(is_text(row.get(name)) for row in rows)
            for name in rows[0]
        }
        chosen = choose_column(column, holds, records.where)
    if chosen is not None:
        records.facts["column"] = chosen
    for number, value in itertools.chain(preview, values):
        here = f"{records.where}, {records.unit} {number}"
        if value == "" or (chosen is None and not isinstance(value, dict)):
            yield number, value
            continue
        if chosen is None or not isinstance(value, dict):
            raise DataError(
                f"{here} is not an object with the key {chosen!r}: {shorten(repr(value), 60)}."
            )
        found = (value[chosen],) if chosen in value else _inner(value, chosen)
        if found is None:
            raise DataError(
                f"{here} has no {chosen!r}. It has: {', '.join(map(repr, value)) or 'nothing'}."
            )
        yield number, records.cell(value, chosen, found[0])


def _lines(path: Path, records: Records) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text_lines(path, records.facts["encoding"]), 1):
        yield number, line.rstrip("\r\n")


def _inner(value: Any, name: str) -> tuple[Any] | None:
    """What an object holds under a name such as `doc.text`, which leads into objects inside it;
    None where nothing is there."""
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return (value,)


def _json_values(path: Path, records: Records) -> Iterator[tuple[int, object]]:
    lines = text_lines(path, records.facts["encoding"])
    parse_float = ExactFloat if records.whole else None
    head = list(itertools.islice(lines, 1))
    if head and head[0].lstrip().startswith("["):
        records.unit = "item"
        try:
            values = json.loads("".join(itertools.chain(head, lines)), parse_float=parse_float)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}, line {error.lineno} is not valid JSON: {error.msg}. Correct it."
            ) from error
        except ValueError as error:
            raise DataError(
                f"{path} is not valid JSON: {json_problem(error)}. Correct it."
            ) from error
        yield from enumerate(values, 1)
        return
    yield from json_lines(
        itertools.chain(head, lines),
        path,
        "JSON string or object (or the whole file one list)",
        parse_float,
    )


def json_lines(
    lines: Iterable[str],
    path: Path,
    expected: str = "JSON object",
    parse_float: Callable[[str], float] | None = None,
) -> Iterator[tuple[int, object]]:
    """The value of every line, with its number; an empty text for a blank line."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            yield number, ""
            continue
        try:
            yield number, json.loads(line, parse_float=parse_float)
        except ValueError as error:
            raise DataError(
                f"{path}, line {number} is not valid JSON: {json_problem(error)}. Every line must be one {expected}."
            ) from error


def json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The object of every line that is not blank, with its number."""
    for number, value in json_lines(text_lines(path), path):
        if isinstance(value, dict):
            yield number, value
        elif value != "":
            raise DataError(
                f"{path}, line {number} is {type(value).__name__}; every line must be a JSON object."
            )


def _csv_values(path: Path, records: Records) -> Iterator[tuple[int, Any]]:
    yield from csv_rows(path, records.facts["encoding"], records.facts)


def csv_rows(
    path: Path, encoding: str = "utf-8", facts: dict[str, Any] | None = None
) -> Iterator[tuple[int, Any]]:
    """Yield every row by the names of its columns, with its line; an empty text for a blank row.

    The header tells what separates the fields, which goes into `facts`.
    """
    # The limit is one of the process, 128 KiB at first: less than some documents.
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 26))
    lines = text_lines(path, encoding)
    head: list[str] = []
    filled: list[str] = []
    while len(filled) < 2 and (line := next(lines, None)) is not None:
        head.append(line)
        filled += [line] if line.strip() else []
    delimiter = _delimiter(filled, path)
    if facts is not None:
        facts["delimiter"] = delimiter
    reader = csv.reader(itertools.chain(head, lines), delimiter=delimiter, strict=True)
    header: list[str] = []
    try:
        for row in reader:
            if not any(field.strip() for field in row):
                if header:
                    yield reader.line_num, ""
            elif not header:
                header = _header(row, path)
            elif len(row) != len(header):
                raise DataError(
                    f"{path}, line {reader.line_num} has {len(row)} fields, the header has {len(header)}. "
                    f"Put texts that hold {delimiter!r} or line ends in double quotes."
                )
            else:
                yield reader.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num} is not valid CSV: {error}. Check the quotes."
        ) from error


def _delimiter(lines: list[str], path: Path) -> str:
    """Return what separates the fields of the header; the row below it tells where several could,
    and what is only a mark in a name."""
    usual = "\t" if path.name.lower().removesuffix(".gz").endswith(".tsv") else ","
    widths = {one: [_width(line, one) for line in lines] for one in DELIMITERS}
    possible = [one for one, width in widths.items() if width and width[0] > 1]
    if len(lines) > 1 and lines[1].count('"') % 2 == 0:  # else it goes on in the next line
        possible = [one for one in possible if widths[one][1] > 1]
    even = [one for one in possible if len(set(widths[one])) == 1]
    if len(possible) > 1 and len(even) == 1:
        possible = even
    if len(possible) > 1 and (even or usual not in possible):
        given = " or by ".join(map(repr, possible))
        raise DataError(
            f"{path}: its fields may be separated by {given}. Put fields that hold them in double "
            "quotes."
        )
    delimiter = possible[0] if len(possible) == 1 else usual
    if delimiter != usual:
        _log_delimiter(path, delimiter)
    return delimiter


@lru_cache(maxsize=64)  # a file may be read more than once, and this is logged once
def _log_delimiter(path: Path, delimiter: str) -> None:
    log.info("%s: its fields are separated by %r", path, delimiter)


def _width(line: str, delimiter: str) -> int:
    try:
        return len(next(csv.reader([line], delimiter=delimiter, strict=True), []))
    except csv.Error:  # a quote in the middle of a field
        return 0


def _is_words(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return bool(value and value.strip())
    return False


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _parquet_texts(
    path: Path, column: str | None, records: Records
) -> Iterator[tuple[int, object]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def is_string(kind: Any) -> bool:
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        return bool(
            pa.types.is_string(kind)
            or pa.types.is_large_string(kind)
            or pa.types.is_string_view(kind)
        )

    try:
        with _readable(path), pq.ParquetFile(path) as table:
            chosen = choose_column(
                column, {f.name: is_string(f.type) for f in table.schema_arrow}, str(path)
            )
            records.facts["column"] = chosen
            del records.facts["encoding"]  # a parquet string says itself that it is UTF-8
            names = table.schema_arrow.names if records.whole else [chosen]
            batches = table.iter_batches(batch_size=1024, columns=names)
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                yield number, records.cell(row, chosen, row[chosen])
    except (
        pa.ArrowException,
        ValueError,
        OverflowError,
        MemoryError,
    ) as error:  # ValueError: strings that are not UTF-8
        raise DataError(
            f"{path} is not a readable parquet file: {error}. Write or download it again."
        ) from error


def _xlsx_values(path: Path, records: Records) -> Iterator[tuple[int, Any]]:
    require("xlsx")
    from python_calamine import CalamineError, CalamineWorkbook

    try:
        book = CalamineWorkbook.from_path(path)
        sheet = book.get_sheet_by_index(0)
        cells = sheet.to_python()
    except (CalamineError, OSError) as error:
        raise DataError(
            f"{path} is not a readable .xlsx file: {one_line(str(error))}. Save it again, or as .csv."
        ) from error
    more = book.sheet_names[1:]
    if more:
        log.info("%s: its first sheet is read (%s), not %s", path, sheet.name, ", ".join(more))
    first = cells[0] if cells else []
    places = [i for i, name in enumerate(first) if name != ""]
    header = _header([str(_cell(first[i])) for i in places], path)
    above = (sheet.start or (0, 0))[0]
    for number, row in enumerate(cells[1:], above + 2):
        yield number, dict(zip(header, (_cell(row[i]) for i in places), strict=True))


def _cell(value: Any) -> Any:
    """Return a cell's value: None where it is empty, a whole number where it is one."""
    if value == "":
        return None
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _header(names: list[str], path: Path) -> list[str]:
    """Names of columns, each once; one without a name is called by its place."""
    names = [name.strip() or f"column_{i}" for i, name in enumerate(names, 1)]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise DataError(f"{path} has two columns named {twice!r}. Rename one of them.")
    return names


_READERS: dict[str, Callable[[Path, Records], Iterator[tuple[int, Any]]]] = {
    ".txt": _lines,
    ".jsonl": _json_values,
    ".ndjson": _json_values,
    ".json": _json_values,
    ".csv": _csv_values,
    ".tsv": _csv_values,
    ".xlsx": _xlsx_values,
}
_HOLDS_TEXT = {kind: _is_words if kind in (".csv", ".tsv") else _is_string for kind in _READERS}
SUFFIXES = (".txt", ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".xlsx")


def choose_column(given: str | None, columns: Mapping[str, bool], where: str) -> str:
    """The column to read: the one given, else one with a usual name, else the only one that holds
    text.

    `columns` says of each column whether it holds strings.

    >>> choose_column(None, {"id": False, "body": True}, "posts.csv")
    'body'
    """
    listed = ", ".join(repr(name) for name in columns) or "none"
    strings = [name for name, is_string in columns.items() if is_string]
    if given is not None:
        if given not in columns:
            near = near_misses(given, columns)
            guess = f" Did you mean {near[0]!r}?" if near else ""
            raise DataError(f"{where} has no column {given!r}.{guess} Columns: {listed}.")
        if given not in strings:
            texts = ", ".join(repr(name) for name in strings) or "none"
            raise DataError(
                f"{where}: column {given!r} does not hold text. Columns that do: {texts}."
            )
        return given
    by_name = {name.strip().lower(): name for name in reversed(strings)}
    for name in PREFERRED_COLUMNS:
        if name in by_name:
            return by_name[name]
    if len(strings) == 1:
        return strings[0]
    found = "no column of text" if not strings else f"{len(strings)} columns of text"
    raise DataError(f"{where} has {found}. Name the one to read with column=. Columns: {listed}.")


def table_columns(table: Any) -> list[str] | None:
    """The columns of a table in memory (pandas, Polars, `datasets`); None for anything else."""
    names = getattr(table, "column_names", None)
    if isinstance(names, dict):
        raise DataError(
            f"a dataset with several splits was given ({', '.join(names)}). Give one: dataset[{next(iter(names))!r}]."
        )
    if names is None and hasattr(table, "columns") and hasattr(table, "__getitem__"):
        names = table.columns
    return None if names is None or isinstance(names, str) else [str(name) for name in names]


def read_table(table: Any, names: list[str], column: str | None, whole: bool = False) -> Records:
    """The texts of one column of a table in memory; what is missing there is null."""

    def values(name: str) -> Iterator[object]:
        return (
            None if is_missing(value) and not isinstance(value, str) else value
            for value in table[name]
        )

    def holds_text(name: str) -> bool:
        if name == column:
            return True
        some = [
            value for value in itertools.islice(values(name), PREVIEW_ROWS) if value is not None
        ]
        return bool(some) and isinstance(some[0], str)

    chosen = choose_column(
        column, {name: holds_text(name) for name in names}, f"the given {type(table).__name__}"
    )
    records = Records(
        iter(()), f"the given {type(table).__name__}", "row", {"column": chosen}, whole
    )
    rows = (
        (dict(zip(names, row, strict=True)) for row in zip(*map(values, names), strict=True))
        if whole
        else None
    )
    records.items = enumerate(
        values(chosen) if rows is None else (records.cell(row, chosen, row[chosen]) for row in rows)
    )
    return records


TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")

Rows = list[tuple[int, dict[str, Any]]]


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing: null, not a number, or no letter.

    >>> [is_missing(value) for value in (None, float("nan"), " ", 0, "no")]
    [True, True, True, False, False]
    """
    return (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or (isinstance(value, str) and not value.strip())
    )


def as_label(value: Any, where: str) -> str:
    """A class as a text. Lists, objects and missing values are refused."""
    if is_missing(value) or isinstance(value, (list, dict, tuple, set)):
        raise DataError(f"{where}: a label is a text or a number, not {value!r:.60}.")
    return str(value)


def read_rows(path: Path) -> tuple[list[str], Rows]:
    """The names of the columns, and every row that is not blank with its number in the file."""
    name = path.name.lower().removesuffix(".gz")
    suffix = next((ending for ending in TABLE_SUFFIXES if name.endswith(ending)), None)
    if suffix is None:
        raise DataError(
            f"{path} is not a table that can be read. Valid: {', '.join(TABLE_SUFFIXES)}, each also with .gz."
        )
    if not path.is_file():
        raise DataError(
            f"there is no file {path}. Give the labeled examples as {', '.join(TABLE_SUFFIXES[:3])}."
        )
    check_version = version_check(path)
    read = json_objects if suffix in (".jsonl", ".ndjson") else csv_rows
    rows = [(number, row) for number, row in read(path) if row != ""]
    check_version()
    if not rows:
        raise DataError(f"{path} holds no examples.")
    return list(dict.fromkeys(name for _, row in rows for name in row)), rows
