"""Read texts and tables from files: `.txt`, `.jsonl`, `.json`, `.csv`, `.tsv` (each also `.gz`),
`.parquet` and `.xlsx`, and folders of documents."""

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
from pathlib import Path
from typing import Any

from layerscope.core.files import json_problem
from layerscope.data.records import (
    PREVIEW_ROWS,
    ExactFloat,
    Records,
    Values,
    choose_column,
    has_inner,
    version_check,
)
from layerscope.errors import DataError, one_line
from layerscope.extras import require

DOCUMENTS = (".txt", ".md")
CSV_SUFFIXES = (".csv", ".tsv")
SUFFIXES = (".txt", ".jsonl", ".ndjson", ".json", *CSV_SUFFIXES, ".parquet", ".xlsx")
TABLE_SUFFIXES = (*CSV_SUFFIXES, ".jsonl", ".ndjson")
DELIMITERS = (",", ";", "\t", "|")

log = logging.getLogger("layerscope")

Rows = list[tuple[int, dict[str, Any]]]


def read_file(
    path: Path, *, column: str | None = None, encoding: str | None = None, whole: bool = False
) -> Records:
    """Return the records of one file; its suffix tells its format.

    Without `whole`, only one column of a parquet file is read, and numbers lose their spelling.
    """
    suffix = _suffix(path)
    with _readable(path):
        is_empty = path.stat().st_size == 0
    if is_empty:
        raise DataError(f"{path} is empty. Give a file with at least one text.")
    check_version = version_check(path)
    facts: dict[str, Any] = {"path": str(path.resolve()), "format": suffix[1:]}
    unit = "line"
    is_text: Callable[[Any], bool] = _is_string
    if suffix == ".parquet":
        unit = "row"
        column, values = _parquet_rows(path, column, whole)
    elif suffix == ".xlsx":
        unit = "row"
        column, values = _find_column(_xlsx_rows(path), column, path, _is_string)
    else:
        codec = facts["encoding"] = find_codec(encoding)
        if suffix == ".txt":
            values = _lines(path, codec, column)
        elif suffix in CSV_SUFFIXES:
            is_text = _is_words
            facts["delimiter"], values = csv_rows(path, codec)
        else:
            unit, values = _json_values(path, codec, ExactFloat if whole else None)
        column, values = _find_column(values, column, path, is_text)
    facts["column"] = column
    return Records("file", path.name, str(path), unit, values, column, facts, check_version)


def read_documents(folder: Path, encoding: str | None = None) -> Records:
    """Return every document below a folder as one text, in the order of their paths. Hidden files
    and folders are left out."""
    files = []
    for path in sorted(folder.rglob("*")):
        is_hidden = any(name.startswith(".") for name in path.relative_to(folder).parts)
        if path.suffix.lower() in DOCUMENTS and not is_hidden and path.is_file():
            files.append(path)
    if not files:
        names = ", ".join(sorted(item.name for item in folder.iterdir())[:5])
        raise DataError(
            f"{folder} is a folder without documents ({', '.join(DOCUMENTS)}). It holds: "
            f"{names or 'nothing'}. Or give one file of texts ({', '.join(SUFFIXES)})."
        )
    codec = find_codec(encoding)

    def values() -> Values:
        for number, path in enumerate(files, 1):
            text = "".join(text_lines(path, codec))
            yield number, {"text": text, "file": path.relative_to(folder).as_posix()}

    facts = {"path": str(folder.resolve()), "files": len(files)}
    check_version = version_check(*files)
    return Records(
        "folder", folder.name, str(folder), "file", values(), "text", facts, check_version
    )


def read_rows(path: Path) -> tuple[list[str], Rows]:
    """Return the columns of a table, and every row that is not blank with its number."""
    name = path.name.lower().removesuffix(".gz")
    if not name.endswith(TABLE_SUFFIXES) or not path.is_file():
        problem = "is not a table" if path.is_file() else "does not exist"
        raise DataError(
            f"{path} {problem}. Valid: {', '.join(TABLE_SUFFIXES)}, each also with .gz."
        )
    check_version = version_check(path)
    values = csv_rows(path)[1] if name.endswith(CSV_SUFFIXES) else json_objects(path)
    rows = [(number, row) for number, row in values if row != ""]
    check_version()
    if not rows:
        raise DataError(f"{path} holds no examples.")
    return list(dict.fromkeys(name for _, row in rows for name in row)), rows


def _suffix(path: Path) -> str:
    name = path.name.lower()
    suffix = Path(name.removesuffix(".gz")).suffix
    is_packed = name.endswith(".gz")
    if suffix not in SUFFIXES or (is_packed and suffix in (".parquet", ".xlsx")):
        shown = suffix + ".gz" * is_packed
        raise DataError(
            f"{path} has the suffix {shown or '(none)'!r}. Valid: {', '.join(SUFFIXES)}; all but "
            ".parquet and .xlsx also with .gz. Convert the file."
        )
    return suffix


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn errors of the file system and of gzip into one that names the file."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}). Copy it again.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def find_codec(encoding: str | None) -> str:
    """Return Python's name of an encoding; default utf-8."""
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
        except UnicodeError as error:
            place = ""
            guess = "latin-1"
            if isinstance(error, UnicodeDecodeError):
                before = error.object[: error.start].count(b"\n")
                place = f": byte 0x{error.object[error.start]:02x} in line {number + before + 1}"
                if error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                    guess = "utf-16"
            raise DataError(
                f"{path} is not {encoding}{place}. Give its encoding, such as encoding={guess!r}, "
                "or convert it with iconv."
            ) from error


def _lines(path: Path, encoding: str, column: str | None) -> Values:
    """Return the lines of a plain text, without their line ends."""
    if column is not None:
        raise DataError(
            f"{path} is plain text, one prompt per line: it has no column {column!r}. Leave "
            "column= out."
        )
    lines = enumerate(text_lines(path, encoding), 1)
    return ((number, line.rstrip("\r\n")) for number, line in lines)


def _find_column(
    values: Values, column: str | None, path: Path, is_text: Callable[[Any], bool]
) -> tuple[str | None, Values]:
    """Return the column of the texts, which the first rows tell, and all the values."""
    preview = list(itertools.islice(values, PREVIEW_ROWS))
    rows = [value for _, value in preview if isinstance(value, dict)]
    if rows and not (column and has_inner(rows[0], column)):
        holds_text = {
            name: column is not None or any(is_text(row.get(name)) for row in rows)
            for name in rows[0]
        }
        column = choose_column(column, holds_text, str(path))
    return column, itertools.chain(preview, values)


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_words(value: Any) -> bool:
    """Return whether the field of a table is more than a number."""
    try:
        float(value)
    except (TypeError, ValueError):
        return bool(value and value.strip())
    return False


def _json_values(path: Path, encoding: str, number: type[float] | None) -> tuple[str, Values]:
    """Return the values of a JSON list or of JSON lines, and the word for one of them."""
    lines = text_lines(path, encoding)
    start = next(lines, "")
    lines = itertools.chain([start], lines)
    if not start.lstrip().startswith("["):
        return "line", _json_lines(lines, path, number)
    try:
        return "item", enumerate(json.loads("".join(lines), parse_float=number), 1)
    except ValueError as error:
        raise _not_json(path, getattr(error, "lineno", 1), error) from error


def _json_lines(lines: Iterable[str], path: Path, number: type[float] | None = None) -> Values:
    """Yield the value of every line, with its place; an empty text for a blank line."""
    for place, line in enumerate(lines, 1):
        try:
            value = json.loads(line, parse_float=number) if line.strip() else ""
        except ValueError as error:
            raise _not_json(path, place, error) from error
        yield place, value


def _not_json(path: Path, line: int, error: ValueError) -> DataError:
    return DataError(
        f"{path}, line {line} is not valid JSON: {json_problem(error)}. Give one string or object "
        "a line, or one list."
    )


def json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the object of every line that is not blank, with its number."""
    for number, value in _json_lines(text_lines(path), path):
        if isinstance(value, dict):
            yield number, value
        elif value != "":
            raise DataError(
                f"{path}, line {number} is {type(value).__name__}; every line must be a JSON "
                "object."
            )


def csv_rows(path: Path, encoding: str = "utf-8") -> tuple[str, Values]:
    """Return the delimiter of a table, and its rows; an empty text for a blank row."""
    # The limit is one of the process, 128 KiB at first: less than some documents.
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 26))
    lines = text_lines(path, encoding)
    start = []
    filled: list[str] = []
    while len(filled) < 2 and (line := next(lines, None)) is not None:
        start.append(line)
        filled += [line] if line.strip() else []
    is_tsv = path.name.lower().removesuffix(".gz").endswith(".tsv")
    delimiter = _delimiter(filled, "\t" if is_tsv else ",")
    return delimiter, _csv_values(itertools.chain(start, lines), delimiter, path)


def _csv_values(lines: Iterable[str], delimiter: str, path: Path) -> Values:
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
                    f"{len(header)}. Put texts that hold {delimiter!r} or line ends in double "
                    "quotes."
                )
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num} is not valid CSV: {error}. Check the quotes."
        ) from error


def _delimiter(lines: list[str], usual: str) -> str:
    """Return what separates the header's fields: of several, what the row below has as often."""
    # a row with an open quote ends in a later line
    rows = [line for i, line in enumerate(lines) if i == 0 or line.count('"') % 2 == 0]
    signs = sorted(DELIMITERS, key=lambda sign: sign != usual)
    widths = {sign: [_width(row, sign) for row in rows] for sign in signs}
    possible = [sign for sign in signs if min(widths[sign], default=0) > 1]
    even = [sign for sign in possible if len(set(widths[sign])) == 1]
    return next(iter(even or possible), usual)


def _width(line: str, delimiter: str) -> int:
    try:
        return len(next(csv.reader([line], delimiter=delimiter, strict=True), []))
    except csv.Error:  # a quote in the middle of a field
        return 0


def _header(names: list[str], path: Path) -> list[str]:
    """Return the names of columns; a column without a name is called by its place."""
    header = [name.strip() or f"column_{i}" for i, name in enumerate(names, 1)]
    if len(set(header)) < len(header):
        double = max(header, key=header.count)
        raise DataError(f"{path} has two columns named {double!r}. Rename one of them.")
    return header


def _parquet_rows(path: Path, column: str | None, whole: bool) -> tuple[str, Values]:
    """Return the text column and the rows of a file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def is_string(kind: pa.DataType) -> bool:
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        return kind in (pa.string(), pa.large_string(), pa.string_view())

    @contextmanager
    def explained() -> Iterator[None]:
        try:
            with _readable(path):
                yield
        except (pa.ArrowException, ValueError) as error:  # ValueError: strings that are not UTF-8
            raise DataError(f"{path} is not a readable parquet file: {error}.") from error

    with explained():
        schema = pq.read_schema(path)
    columns = {field.name: is_string(field.type) for field in schema}
    chosen = choose_column(column, columns, str(path))
    names = schema.names if whole else [chosen]

    def rows() -> Iterator[dict[str, Any]]:
        with explained(), pq.ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=1024, columns=names):
                yield from batch.to_pylist()

    return chosen, enumerate(rows(), 1)


def _xlsx_rows(path: Path) -> Values:
    """Yield the rows of the first sheet."""
    require("xlsx")
    from python_calamine import CalamineError, CalamineWorkbook

    try:
        book = CalamineWorkbook.from_path(path)
        sheet = book.get_sheet_by_index(0)
        cells = sheet.to_python()
    except (CalamineError, OSError) as error:
        raise DataError(
            f"{path} is not a readable .xlsx file: {one_line(str(error))}. Save it as .csv."
        ) from error
    unread = ", ".join(book.sheet_names[1:])
    if unread:
        log.info("%s: its first sheet is read (%s), not %s", path, sheet.name, unread)
    names = cells[0] if cells else []
    places = [i for i, name in enumerate(names) if name != ""]
    header = _header([str(_cell(names[i])) for i in places], path)
    above = (sheet.start or (0, 0))[0]
    for number, row in enumerate(cells[1:], above + 2):
        yield number, dict(zip(header, (_cell(row[i]) for i in places), strict=True))


def _cell(value: Any) -> Any:
    """Return a cell's value; None if it is empty."""
    if value == "":
        return None
    return int(value) if isinstance(value, float) and value.is_integer() else value
