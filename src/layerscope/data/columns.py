"""What else a file says of some of its texts: the other columns of their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from layerscope.core.parquet import parquet_batches
from layerscope.data.readers import csv_rows, json_lines, text_lines

_MOST = 40  # columns
_FORMATS = ("csv", "tsv", "jsonl", "ndjson", "parquet")


def columns_beside(source: Mapping[str, Any], texts: Sequence[str]) -> dict[str, list[Any]]:
    """The other columns of the file that texts are from, by name: a value per text, of the first row that has it.

    `source` is what reading the file told of it. The file is read in a stream. What is no file, or has changed, gives nothing.
    """
    column, path = source.get("column"), Path(str(source.get("path", "")))
    if source.get("kind") != "file" or column is None or source.get("format") not in _FORMATS or not path.is_file():
        return {}
    wanted, found = set(texts), dict[str, Mapping[str, Any]]()
    try:
        for row in _rows(path, source):
            text = row.get(column)
            if isinstance(text, str) and text in wanted and text not in found:
                found[text] = row
    except Exception:  # of many kinds: other columns than those that were read may be damaged
        return {}
    names = [name for name in dict.fromkeys(name for row in found.values() for name in row) if name != column][:_MOST]
    values = {name: [found.get(text, {}).get(name) for text in texts] for name in names}
    return {str(name): some for name, some in values.items() if not any(isinstance(value, list | dict) for value in some)}


def _rows(path: Path, source: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if source["format"] == "parquet":
        yield from _parquet_rows(path)
        return
    encoding = str(source.get("encoding", "utf-8"))
    if source["format"] in ("csv", "tsv"):
        rows: Iterable[Any] = csv_rows(path, encoding, source.get("delimiter"))
        header: list[str] | None = None
        for _, fields in rows:
            if header is None:
                header = fields
            else:
                yield dict(zip(header, fields, strict=False))
    else:
        for _, value in json_lines(text_lines(path, encoding), path):
            if isinstance(value, dict):
                yield value


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as table:
        for batch in parquet_batches(table, path):
            yield from batch.to_pylist()
