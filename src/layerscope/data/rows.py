"""The rows of a table in a file, as dictionaries: `.csv`, `.tsv` and `.jsonl`, each also `.gz`."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import zlib
from pathlib import Path
from typing import Any

from layerscope.core.untrusted import json_problem
from layerscope.errors import DataError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")

Rows = list[tuple[int, dict[str, Any]]]


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing: null, not a number, or no letter.

    >>> [is_missing(value) for value in (None, float("nan"), " ", 0, "no")]
    [True, True, True, False, False]
    """
    return value is None or (isinstance(value, float) and math.isnan(value)) or (isinstance(value, str) and not value.strip())


def as_label(value: Any, where: str) -> str:
    """A class as a text; a list or an object is none, and neither is a missing value."""
    if is_missing(value) or isinstance(value, (list, dict, tuple, set)):
        raise DataError(f"{where}: a label is a text or a number, not {value!r:.60}.")
    return str(value)


def read_rows(path: Path) -> tuple[list[str], Rows]:
    """The names of the columns, and every row that is not blank with its number in the file."""
    name = path.name.lower().removesuffix(".gz")
    suffix = next((ending for ending in SUFFIXES if name.endswith(ending)), None)
    if suffix is None:
        raise DataError(f"{path} is not a table that can be read. Valid: {', '.join(SUFFIXES)}, each also with .gz.")
    if not path.is_file():
        raise DataError(f"there is no file {path}. Give the labeled examples as {', '.join(SUFFIXES[:3])}.")
    lines = _decoded(path)
    columns, rows = _json_rows(path, lines) if suffix in (".jsonl", ".ndjson") else _csv_rows(path, lines, suffix)
    if not rows:
        raise DataError(f"{path} holds no examples.")
    return columns, rows


def _decoded(path: Path) -> str:
    try:
        raw = gzip.decompress(path.read_bytes()) if path.name.lower().endswith(".gz") else path.read_bytes()
        return raw.decode("utf-8-sig")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}). Copy or download it again.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 (byte {error.start}). Convert it: iconv -f LATIN1 -t UTF-8.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def _csv_rows(path: Path, text: str, suffix: str) -> tuple[list[str], Rows]:
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 30))
    delimiter = "\t" if suffix == ".tsv" else ","
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: Rows = []
    header: list[str] = []
    try:
        for fields in reader:
            if not any(field.strip() for field in fields):
                continue
            if not header:
                header = [field.strip() for field in fields]
                continue
            if len(fields) != len(header):
                raise DataError(
                    f"{path}, line {reader.line_num} has {len(fields)} fields, the header has {len(header)}. "
                    f"Put texts that hold {delimiter!r} or line ends in double quotes."
                )
            rows.append((reader.line_num, dict(zip(header, fields, strict=True))))
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num} is not valid CSV: {error}. Check the quotes.") from error
    return header, rows


def _json_rows(path: Path, text: str) -> tuple[list[str], Rows]:
    rows: Rows = []
    columns: dict[str, None] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{path}, line {number} is not valid JSON: {json_problem(error)}. Every line must be one object."
            ) from error
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number} is {type(row).__name__}; every line must be a JSON object.")
        columns.update(dict.fromkeys(row))
        rows.append((number, row))
    return list(columns), rows
