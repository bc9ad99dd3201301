"""The rows of a table in a file, as dictionaries: `.csv`, `.tsv` and `.jsonl`, each also `.gz`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from layerscope.data.readers import csv_rows, json_objects
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
    columns, rows = _json_rows(path) if suffix in (".jsonl", ".ndjson") else _csv_rows(path)
    if not rows:
        raise DataError(f"{path} holds no examples.")
    return columns, rows


def _csv_rows(path: Path) -> tuple[list[str], Rows]:
    filled = ((number, fields) for number, fields in csv_rows(path) if any(field.strip() for field in fields))
    header = [name.strip() for name in next(filled, (0, []))[1]]
    return header, [(number, dict(zip(header, fields, strict=True))) for number, fields in filled]


def _json_rows(path: Path) -> tuple[list[str], Rows]:
    rows = list(json_objects(path))
    return list(dict.fromkeys(name for _, row in rows for name in row)), rows
