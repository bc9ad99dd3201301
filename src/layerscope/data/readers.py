"""Read texts and tables from files: `.txt`, `.jsonl`, `.json`, `.csv`, `.tsv` (each also `.gz`),
`.parquet` and `.xlsx`."""

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

LINE_SUFFIXES = (".jsonl", ".ndjson", ".json")
CSV_SUFFIXES = (".csv", ".tsv")
SUFFIXES = (".txt", *LINE_SUFFIXES, *CSV_SUFFIXES, ".parquet", ".xlsx")
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
PREFERRED_COLUMNS = ("text", "sentence", "content")
PREVIEW_ROWS = 100
"""Number of first rows that tell columns of text from columns of numbers."""
DELIMITERS = (",", ";", "\t", "|")
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

log = logging.getLogger("layerscope")

Values = Iterator[tuple[int, Any]]
"""Numbers of lines or rows, and the value of each: a text, or a row as a dictionary."""

Rows = list[tuple[int, dict[str, Any]]]


class Row(NamedTuple):
    """A text with the other columns of its row, by name."""

    text: object
    others: dict[str, Any]


@dataclass(frozen=True)
class Records:
    """Values in reading order, and facts about their source.

    `column` names the column of the texts; None if the values are texts. `clean` removes what is
    not part of a text. `check_version` raises an error if a file was written to since reading
    began.
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
    text_filter: str | None = None

    def rows(self, whole: bool) -> Iterator[tuple[int, Any]]:
        """Yield the texts, or with `whole` each as a `Row` with the other columns."""
        for number, value in self.values:
            text = value
            others: dict[str, Any] = {}
            if self.column is not None and value != "":
                text = self._text(number, value, self.column)
                if whole:
                    others = {key: item for key, item in value.items() if key != self.column}
            if self.clean is not None and isinstance(text, str):
                text = self.clean(text)
            yield number, Row(text, others) if whole else text

    def _text(self, number: int, value: Any, column: str) -> object:
        if isinstance(value, dict) and column in value:
            return value[column]
        here = f"{self.where}, {self.unit} {number}"
        if not isinstance(value, dict):
            raise DataError(
                f"{here} is not an object with the key {column!r}: {shorten(repr(value), 60)}."
            )
        inner = _inner(value, column)
        if inner is None:
            raise DataError(
                f"{here} has no {column!r}. It has: {', '.join(map(repr, value)) or 'nothing'}."
            )
        return inner[0]


def read_file(
    path: Path, *, column: str | None = None, encoding: str | None = None, whole: bool = False
) -> Records:
    """Return the records of one file; its suffix tells its format.

    Without `whole`, the other columns of a parquet file are not read.
    """
    suffix = _suffix(path)
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty. Give a file with at least one text.")
    check_version = version_check(path)
    facts: dict[str, Any] = {"path": str(path.resolve()), "format": suffix[1:]}
    unit = "line"
    is_text = _is_string
    if suffix == ".parquet":
        unit = "row"
        column, values = _parquet_values(path, column, whole)
    else:
        codec = find_codec(encoding)
        facts["encoding"] = codec
        if suffix == ".txt":
            if column is not None:
                raise DataError(
                    f"{path} is plain text, one prompt per line: it has no column {column!r}. "
                    "Leave column= out."
                )
            lines = enumerate(text_lines(path, codec), 1)
            values = ((number, line.rstrip("\r\n")) for number, line in lines)
        elif suffix == ".xlsx":
            unit = "row"
            values = _xlsx_values(path)
        elif suffix in CSV_SUFFIXES:
            is_text = _is_words
            facts["delimiter"], values = csv_values(path, codec)
        else:
            unit, values = _json_values(path, codec, ExactFloat if whole else None)
        column, values = _find_column(values, column, str(path), is_text)
    facts["column"] = column
    return Records("file", path.name, str(path), unit, values, column, facts, check_version)


def _suffix(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    is_packed = suffixes[-1:] == [".gz"]
    names = suffixes[:-1] if is_packed else suffixes
    suffix = names[-1] if names else ""
    if suffix not in SUFFIXES or (is_packed and suffix in (".parquet", ".xlsx")):
        raise DataError(
            f"{path} has the suffix {''.join(suffixes[-2:]) or '(none)'!r}, which cannot be read. "
            f"Valid: {', '.join(SUFFIXES)}; all but .parquet and .xlsx also with .gz. Rename or "
            "convert the file."
        )
    return suffix


def version_check(*paths: Path) -> Callable[[], None]:
    """Return a function that raises an error if a file was written to since this call."""

    def versions() -> list[tuple[int, int, int]]:
        stats = [path.stat() for path in paths]
        return [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]

    before = versions()

    def check() -> None:
        try:
            is_same = versions() == before
        except OSError:
            is_same = False
        if not is_same:
            raise DataError(changed(paths[0] if len(paths) == 1 else paths[0].parent))

    return check


def changed(source: object) -> str:
    """Return the message for texts that changed while they were read."""
    return (
        f"{source} changed while it was read. Run the same command again when nothing writes to it."
    )


class ExactFloat(float):
    """A number of a JSON file, written as it was spelled there."""

    spelling: str

    def __new__(cls, spelling: str) -> ExactFloat:
        number = super().__new__(cls, spelling)
        number.spelling = spelling
        return number

    def __repr__(self) -> str:
        return self.spelling


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn errors of the file system and of gzip into one that names the file."""
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


def find_codec(encoding: str | None) -> str:
    """Return Python's name of an encoding; utf-8 if none is given."""
    try:
        return codecs.lookup(encoding or "utf-8").name
    except LookupError as error:
        raise DataError(
            f"unknown encoding {encoding!r}. Valid: utf-8, latin-1, cp1252, utf-16 and so on."
        ) from error


def text_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yield decoded lines with their line ends. Only a newline ends a line, not U+2028 or the
    like."""
    open_text: Any = gzip.open if path.suffix.lower() == ".gz" else open
    decoder = "utf-8-sig" if encoding == "utf-8" else encoding  # leaves out a byte order mark
    number = 0
    with _readable(path), open_text(path, "rt", encoding=decoder, newline="\n") as stream:
        try:
            for number, line in enumerate(stream, 1):  # noqa: B007
                yield line
        except UnicodeDecodeError as error:
            before = error.object[: error.start]
            has_mark = number == 0 and error.object[:2] in _UTF16_MARKS
            guess = "utf-16" if has_mark else "latin-1"
            raise DataError(
                f"{path} is not {encoding if encoding != 'utf-8' else 'UTF-8'}: byte "
                f"0x{error.object[error.start]:02x} in line {number + before.count(10) + 1}. Say "
                f"what it is, such as encoding={guess!r}, or convert it: iconv -f {guess.upper()} "
                "-t UTF-8."
            ) from error
        except UnicodeError as error:
            raise DataError(
                f"{path} is not {encoding}: {error}. Give another encoding=."
            ) from error


def _find_column(
    values: Values, column: str | None, where: str, is_text: Callable[[Any], bool]
) -> tuple[str | None, Values]:
    """Return the column of the texts, which the first rows tell, and all the values."""
    preview = list(itertools.islice(values, PREVIEW_ROWS))
    rows = [value for _, value in preview if isinstance(value, dict)]
    if rows and not (column and _inner(rows[0], column)):
        holds_text = {
            name: column is not None or any(is_text(row.get(name)) for row in rows)
            for name in rows[0]
        }
        column = choose_column(column, holds_text, where)
    return column, itertools.chain(preview, values)


def _inner(value: Any, name: str) -> tuple[Any] | None:
    """Return the value under a name such as `doc.text`, which leads into inner objects, in a tuple;
    None if there is none."""
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return (value,)


def _json_values(
    path: Path, encoding: str, parse_float: Callable[[str], float] | None
) -> tuple[str, Values]:
    """Return the values of a JSON list or of JSON lines, and the word for one of them."""
    lines = text_lines(path, encoding)
    head = list(itertools.islice(lines, 1))
    lines = itertools.chain(head, lines)
    if not head or not head[0].lstrip().startswith("["):
        expected = "JSON string or object (or the whole file one list)"
        return "line", json_lines(lines, path, expected, parse_float)
    try:
        return "item", enumerate(json.loads("".join(lines), parse_float=parse_float), 1)
    except ValueError as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(
            f"{path}{line} is not valid JSON: {json_problem(error)}. Correct it."
        ) from error


def json_lines(
    lines: Iterable[str],
    path: Path,
    expected: str,
    parse_float: Callable[[str], float] | None = None,
) -> Values:
    """Yield the value of every line, with its number; an empty text for a blank line."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            yield number, ""
            continue
        try:
            value = json.loads(line, parse_float=parse_float)
        except ValueError as error:
            raise DataError(
                f"{path}, line {number} is not valid JSON: {json_problem(error)}. Every line must "
                f"be one {expected}."
            ) from error
        yield number, value


def json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the object of every line that is not blank, with its number."""
    for number, value in json_lines(text_lines(path), path, "JSON object"):
        if isinstance(value, dict):
            yield number, value
        elif value != "":
            raise DataError(
                f"{path}, line {number} is {type(value).__name__}; every line must be a JSON object."
            )


def csv_values(path: Path, encoding: str = "utf-8") -> tuple[str, Values]:
    """Return what separates the fields of a table, and its rows; an empty text for a blank row."""
    # The limit is one of the process, 128 KiB at first: less than some documents.
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 26))
    lines = text_lines(path, encoding)
    head: list[str] = []
    filled: list[str] = []
    while len(filled) < 2 and (line := next(lines, None)) is not None:
        head.append(line)
        if line.strip():
            filled.append(line)
    delimiter = _delimiter(filled, path)
    return delimiter, _csv_rows(itertools.chain(head, lines), delimiter, path)


def _csv_rows(lines: Iterable[str], delimiter: str, path: Path) -> Values:
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] = []
    try:
        for fields in reader:
            if not any(field.strip() for field in fields):
                if header:
                    yield reader.line_num, ""
            elif not header:
                header = _header(fields, path)
            elif len(fields) == len(header):
                yield reader.line_num, dict(zip(header, fields, strict=True))
            else:
                raise DataError(
                    f"{path}, line {reader.line_num} has {len(fields)} fields, the header has "
                    f"{len(header)}. Put texts that hold {delimiter!r} or line ends in double quotes."
                )
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num} is not valid CSV: {error}. Check the quotes."
        ) from error


def _delimiter(lines: list[str], path: Path) -> str:
    """Return what separates the fields of the header; the row below it decides between several."""
    usual = "\t" if path.name.lower().removesuffix(".gz").endswith(".tsv") else ","
    widths = {sign: [_width(line, sign) for line in lines] for sign in DELIMITERS}
    possible = [sign for sign in DELIMITERS if widths[sign] and widths[sign][0] > 1]
    if len(lines) > 1 and lines[1].count('"') % 2 == 0:  # else the row ends in a later line
        possible = [sign for sign in possible if widths[sign][1] > 1]
    even = [sign for sign in possible if len(set(widths[sign])) == 1]
    if len(even) == 1:
        possible = even
    if len(possible) > 1 and (even or usual not in possible):
        signs = " or by ".join(map(repr, possible))
        raise DataError(
            f"{path}: its fields may be separated by {signs}. Put fields that hold them in double "
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


def _parquet_values(path: Path, column: str | None, whole: bool) -> tuple[str, Values]:
    """Return the column of the texts and the rows of a parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def is_string(kind: pa.DataType) -> bool:
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
        return any(is_kind(kind) for is_kind in kinds)

    @contextmanager
    def explained() -> Iterator[None]:
        # ValueError: strings that are not UTF-8
        problems = (pa.ArrowException, ValueError, OverflowError, MemoryError)
        try:
            with _readable(path):
                yield
        except problems as error:
            raise DataError(
                f"{path} is not a readable parquet file: {error}. Write or download it again."
            ) from error

    with explained():
        schema = pq.read_schema(path)
        chosen = choose_column(
            column, {field.name: is_string(field.type) for field in schema}, str(path)
        )
    names = schema.names if whole else [chosen]

    def values() -> Values:
        number = 0
        with explained(), pq.ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=1024, columns=names):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row

    return chosen, values()


def _xlsx_values(path: Path) -> Values:
    """Yield the rows of the first sheet."""
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
    others = book.sheet_names[1:]
    if others:
        log.info("%s: its first sheet is read (%s), not %s", path, sheet.name, ", ".join(others))
    first = cells[0] if cells else []
    places = [i for i, name in enumerate(first) if name != ""]
    header = _header([str(_cell(first[i])) for i in places], path)
    above = (sheet.start or (0, 0))[0]
    for number, row in enumerate(cells[1:], above + 2):
        yield number, dict(zip(header, (_cell(row[i]) for i in places), strict=True))


def _cell(value: Any) -> Any:
    """Return a cell's value: None if it is empty, a whole number if it is one."""
    if value == "":
        return None
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _header(names: list[str], path: Path) -> list[str]:
    """Return the names of columns; a column without a name is called by its place."""
    header = [name.strip() or f"column_{i}" for i, name in enumerate(names, 1)]
    for i, name in enumerate(header):
        if name in header[:i]:
            raise DataError(f"{path} has two columns named {name!r}. Rename one of them.")
    return header


def choose_column(column: str | None, columns: Mapping[str, bool], where: str) -> str:
    """Return the column to read: the one named, else one with a usual name, else the only one that
    holds text.

    `columns` says of each column whether it holds strings.

    >>> choose_column(None, {"id": False, "body": True}, "posts.csv")
    'body'
    """
    names = ", ".join(repr(name) for name in columns) or "none"
    strings = [name for name, is_string in columns.items() if is_string]
    if column is not None:
        if column not in columns:
            near = near_misses(column, columns)
            guess = f" Did you mean {near[0]!r}?" if near else ""
            raise DataError(f"{where} has no column {column!r}.{guess} Columns: {names}.")
        if column not in strings:
            texts = ", ".join(repr(name) for name in strings) or "none"
            raise DataError(
                f"{where}: column {column!r} does not hold text. Columns that do: {texts}."
            )
        return column
    by_name = {name.strip().lower(): name for name in reversed(strings)}
    for name in PREFERRED_COLUMNS:
        if name in by_name:
            return by_name[name]
    if len(strings) == 1:
        return strings[0]
    problem = f"{len(strings)} columns of text" if strings else "no column of text"
    raise DataError(f"{where} has {problem}. Name the one to read with column=. Columns: {names}.")


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
        if name == column:
            return True
        preview = itertools.islice(cells(name), PREVIEW_ROWS)
        return isinstance(next((value for value in preview if value is not None), None), str)

    chosen = choose_column(column, {name: holds_text(name) for name in names}, where)
    columns = names if whole else [chosen]
    rows = zip(*(cells(name) for name in columns), strict=True)
    values = enumerate(dict(zip(columns, row, strict=True)) for row in rows)
    return Records("memory", "texts", where, "row", values, chosen, {"column": chosen})


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


def read_rows(path: Path) -> tuple[list[str], Rows]:
    """Return the columns of a table, and every row that is not blank with its number."""
    name = path.name.lower().removesuffix(".gz")
    if not name.endswith(TABLE_SUFFIXES):
        raise DataError(
            f"{path} is not a table that can be read. Valid: {', '.join(TABLE_SUFFIXES)}, each "
            "also with .gz."
        )
    if not path.is_file():
        raise DataError(
            f"there is no file {path}. Give the labeled examples as {', '.join(TABLE_SUFFIXES[:3])}."
        )
    check_version = version_check(path)
    values = csv_values(path)[1] if name.endswith(CSV_SUFFIXES) else json_objects(path)
    rows = [(number, row) for number, row in values if row != ""]
    check_version()
    if not rows:
        raise DataError(f"{path} holds no examples.")
    return list(dict.fromkeys(name for _, row in rows for name in row)), rows
