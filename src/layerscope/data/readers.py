"""Read texts and tables from files: `.txt`, `.jsonl`, `.json`, `.csv`, `.tsv` (each also `.gz`),
`.parquet` and `.xlsx`."""

from __future__ import annotations

import codecs
import csv
import gzip
import itertools
import json
import logging
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from layerscope.core.json import json_problem
from layerscope.data.records import (
    PREVIEW_ROWS,
    Records,
    Values,
    choose_column,
    inner_value,
    version_check,
)
from layerscope.errors import DataError, one_line
from layerscope.extras import require

LINE_SUFFIXES = (".jsonl", ".ndjson", ".json")
CSV_SUFFIXES = (".csv", ".tsv")
SUFFIXES = (".txt", *LINE_SUFFIXES, *CSV_SUFFIXES, ".parquet", ".xlsx")
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
DELIMITERS = (",", ";", "\t", "|")
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

log = logging.getLogger("layerscope")

Rows = list[tuple[int, dict[str, Any]]]


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
    if rows and not (column and inner_value(rows[0], column)):
        holds_text = {
            name: column is not None or any(is_text(row.get(name)) for row in rows)
            for name in rows[0]
        }
        column = choose_column(column, holds_text, where)
    return column, itertools.chain(preview, values)


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
