"""Parquet files of somebody else: how much they hold, counted by their pages.

The end of a file may say anything about sizes. A page's head cannot: no reader unpacks more of a
page, or takes more values from it, than its head says. So the heads are summed before anything is
unpacked.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from layerscope.core.bounds import check_rows, check_unpacked, most_unpacked
from layerscope.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

SLOT = 16  # bytes that a value takes in memory, besides those of a text
_BATCH = 256 * 2**20  # bytes of rows that are unpacked at once
_PAD = 100  # bytes after a part of a column that are read as its own, where an old program wrote the file
_HEADS = (
    2**13,
    2**24,
)  # bytes in which a page's head is looked for; pyarrow, too, reads no longer one
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
_BY_NUMBER, _LENGTHS, _DIFFERENCES = (
    (2, 8),
    6,
    7,
)  # how values are written: as numbers of distinct ones, as differences …
_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_Kind = type[Exception]
_Fields = dict[tuple[int, int], Any]


class Part(NamedTuple):
    """A part of a column, counted page by page."""

    path: str
    values: int
    unpacked: int  # bytes of its pages
    numbered: int  # values that stand there as a number only
    distinct: int  # bytes of the distinct values that these numbers mean


def parquet_parts(table: Any, path: os.PathLike[str], error: _Kind = DataError) -> list[Part]:
    """The parts of a `ParquetFile`'s columns, as their pages say. Read here: pyarrow ends the
    process over some descriptions."""
    written = io.BytesIO()
    table.metadata.write_metadata_file(
        written
    )  # the description as pyarrow understood it, whatever else the bytes could mean
    raw = written.getvalue()
    size, walked = os.stat(path).st_size, 0
    parts: list[Part] = []
    try:
        described = _struct(io.BytesIO(raw[4:]), 0)
        with open(path, "rb") as stream:
            for group in described.get((4, _LIST), []):
                for number, chunk in enumerate(group[1, _LIST]):
                    part, length = _count(
                        stream, size, chunk[3, _STRUCT], table.schema.column(number)
                    )
                    parts.append(part)
                    walked += length
                    if walked > size + _PAD * len(parts):
                        raise ValueError("parts of its columns overlap")
    except (LookupError, TypeError, ValueError, AttributeError, EOFError) as problem:
        reason = str(problem) if type(problem) is ValueError else "its description is damaged"
        raise error(
            f"{path} is not a readable parquet file: {reason}. Write or download it again."
        ) from problem
    return parts


def _count(stream: IO[bytes], size: int, facts: _Fields, column: Any) -> tuple[Part, int]:
    """A part of a column, and the bytes in which it stands: read as far as pyarrow does."""
    start, declared = facts[9, _I64], facts[5, _I64]
    if 0 < facts.get((11, _I64), 0) < start:
        start = facts[11, _I64]
    at, end = start, min(size, start + facts[7, _I64] + _PAD)
    values = unpacked = numbered = distinct = 0
    while values < declared and 0 <= at < end:
        head, length = _head(stream, at)
        kind, plain, packed = (head[number, _I32] for number in (1, 2, 3))
        if min(plain, packed) < 0:
            raise ValueError("a page has a size that cannot be")
        count = 0
        if kind == 2:
            distinct += plain
        elif kind in (0, 3):
            page = head[5 if kind == 0 else 8, _STRUCT]
            count, way = page[1, _I32], page[2 if kind == 0 else 4, _I32]
            numbered += count if way in _BY_NUMBER else 0
            if way == _DIFFERENCES:
                raise ValueError(
                    "its texts are written as differences (DELTA_BYTE_ARRAY), which cannot be counted before reading"
                )
            if way == _LENGTHS and plain <= most_unpacked(size):
                stream.seek(at + length)
                if (
                    _lengths(stream.read(min(packed, size)), head, page, facts[4, _I32], column)
                    > count
                ):
                    raise ValueError("a page has more lengths than values")
        if count < 0:
            raise ValueError("a page has a negative number of values")
        values, unpacked, at = values + count, unpacked + plain, at + length + packed
    if values < declared:
        raise ValueError("a part of a column is not where it should be")
    return Part(
        ".".join(name.decode() for name in facts[3, _LIST]), values, unpacked, numbered, distinct
    ), at - start


def _lengths(body: bytes, head: _Fields, page: _Fields, codec: int, column: Any) -> int:
    """How many lengths of texts a page says that it begins with: pyarrow makes room for all of them
    at once."""
    import pyarrow as pa

    if head[1, _I32] == 3:
        levels = page[5, _I32] + page[6, _I32]
        body, plain = body[levels:], head[2, _I32] - levels
        packed = (7, 2) not in page
    else:
        levels, plain, packed = 0, head[2, _I32], True
    if packed and codec:
        body = pa.decompress(body, decompressed_size=plain, codec=_CODECS[codec], asbytes=True)
    if head[1, _I32] == 0:
        for level, written in (
            (column.max_repetition_level, page[4, _I32]),
            (column.max_definition_level, page[3, _I32]),
        ):
            if level and written != 3:
                raise ValueError("its levels are written in a way that is no longer used")
            body = body[4 + int.from_bytes(body[:4], "little") :] if level else body
    stream = io.BytesIO(body)
    return [_number(stream) for _ in range(3)][2]  # the sizes of blocks come first


def _head(stream: IO[bytes], at: int) -> tuple[_Fields, int]:
    """The head of a page, and its length."""
    for longest in _HEADS:
        stream.seek(at)
        raw = io.BytesIO(stream.read(longest))
        try:
            return _struct(raw, 0), raw.tell()
        except EOFError:
            if longest == _HEADS[-1]:
                raise
    raise AssertionError("never reached")


# --- Thrift's compact way of writing, read strictly: what could be understood in two ways is
#   refused ---


def _take(stream: IO[bytes], count: int) -> bytes:
    raw = stream.read(count) if count < 2**31 else b""
    if len(raw) < count:
        raise EOFError
    return raw


def _number(stream: IO[bytes], bits: int = 32) -> int:
    number = shift = 0
    while shift < bits:
        byte = _take(stream, 1)[0]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if byte >= 0x80 or number >= 1 << bits:
        raise ValueError("a number is too large")
    return number


def _value(stream: IO[bytes], kind: int, depth: int) -> Any:
    if depth > 30:
        raise ValueError("it is nested too deeply")
    if kind in (1, 2):
        return kind == 1
    if kind == 3:
        return _take(stream, 1)
    if kind in (4, _I32, _I64):
        number = _number(stream, {4: 16, _I32: 32, _I64: 64}[kind])
        return (number >> 1) ^ -(number & 1)
    if kind == 7:
        return _take(stream, 8)
    if kind == _BINARY:
        return _take(stream, _number(stream))
    if kind in (_LIST, 10):
        head = _take(stream, 1)[0]
        inner, count = head & 15, head >> 4
        count = _number(stream) if count == 15 else count
        return [
            _take(stream, 1) if inner in (1, 2) else _value(stream, inner, depth + 1)
            for _ in range(count)
        ]
    if kind == _STRUCT:
        return _struct(stream, depth + 1)
    raise ValueError("it has a value of an unknown kind")


def _struct(stream: IO[bytes], depth: int) -> _Fields:
    """The fields of a structure, by their numbers and kinds: pyarrow passes over one of another
    kind."""
    found: _Fields = {}
    field = 0
    while head := _take(stream, 1)[0]:
        field = field + (head >> 4) if head >> 4 else _value(stream, 4, depth)
        key = field, head & 15
        if key in found or field > 2**15:
            raise ValueError("a field is there twice")
        found[key] = _value(stream, head & 15, depth)
    return found


# --- reading ---


def check_parquet(
    table: Any, path: os.PathLike[str], columns: list[str] | None = None, error: _Kind = DataError
) -> int:
    """Refuse a `ParquetFile` that takes more than its size allows; how many of its rows may be
    unpacked at once."""
    size = os.stat(path).st_size
    wanted = [
        part
        for part in parquet_parts(table, path, error)
        if columns is None or part.path.split(".")[0] in columns
    ]
    described = [table.schema.column(number) for number in range(len(table.schema.names))]
    width = {
        one.path: one.length for one in described if one.physical_type == "FIXED_LEN_BYTE_ARRAY"
    }
    texts = {one.path for one in described if one.physical_type == "BYTE_ARRAY"}
    rows = Counter({"": table.metadata.num_rows})
    for part in wanted:
        rows[part.path] += part.values
    check_rows(max(rows.values()), size, path, error)
    fixed = sum(part.unpacked + part.values * (SLOT + width.get(part.path, 0)) for part in wanted)
    check_unpacked(fixed, size, path, error)
    shared = [part for part in wanted if part.path in texts and part.numbered]
    if fixed + sum(part.numbered * part.distinct for part in shared) > most_unpacked(
        size
    ):  # only reading tells which are meant
        _weigh(path, columns, sorted({part.path for part in shared}), error)
    longest = max((part.distinct for part in shared), default=0) + max(width.values(), default=0)
    return max(1, _BATCH // max(longest, 1))


def _weigh(
    path: os.PathLike[str], columns: list[str] | None, texts: list[str], error: _Kind
) -> None:
    """Count texts that are given by numbers, without writing any out."""
    import pyarrow.parquet as parquet

    size, unpacked = os.stat(path).st_size, 0
    with parquet.ParquetFile(path, read_dictionary=texts) as table:
        for batch in table.iter_batches(batch_size=2**16, columns=columns):
            unpacked += sum(map(weight, batch.columns))
            check_unpacked(unpacked, size, path, error)


def weight(array: Any) -> int:
    """The bytes of an array of Arrow once each of its values stands for itself."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, base, types = array.type, SLOT * len(array), pa.types
    if isinstance(array, pa.ExtensionArray):
        return weight(array.storage)
    if types.is_dictionary(kind) and not types.is_primitive(kind.value_type):
        lengths = pc.binary_length(array.dictionary).cast("int64")
        return base + int(pc.sum(lengths.take(array.indices)).as_py() or 0)
    if types.is_struct(kind):
        return base + sum(weight(array.field(number)) for number in range(kind.num_fields))
    if (
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_map(kind)
    ):
        return base + weight(array.values)
    if kind.num_fields or "view" in str(kind):
        raise DataError(
            f"values of the type {kind} cannot be counted before they are read. Write them as plain texts or lists."
        )
    return base + int(array.nbytes)


def parquet_batches(
    table: Any,
    path: os.PathLike[str],
    columns: list[str] | None = None,
    error: _Kind = DataError,
    rows: int = 1024,
) -> Iterator[pa.RecordBatch]:
    """The rows of a `ParquetFile`, so many at a time at most, after a look at how many there are
    and how large."""
    yield from table.iter_batches(
        batch_size=min(rows, check_parquet(table, path, columns, error)), columns=columns
    )
