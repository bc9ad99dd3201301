"""How much a file of somebody else may unpack to: a few bytes can ask for all the memory of a machine.

A file may hold so many times its own size, and a small one some more. What it says of itself is compared before it is read; what
it does not say is counted while it is read.
"""

from __future__ import annotations

import io
import lzma
import os
import zipfile
from collections import Counter
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from layerscope.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

_RATIO = 200  # ordinary texts are packed to a third or a tenth; gzip reaches 1,000 with one letter
_LEAST = 256 * 2**20  # bytes that any file may hold
_EACH = 64  # bytes that a text, or a value of JSON or CSV, takes besides its letters
_LEAST_ROWS = 500_000  # of a table; beyond them each takes a byte at least
MOST_LINE = 256 * 2**20
_MARKS = ",[{:;|\t"  # one of them stands before or after every value of JSON and CSV
_Kind = type[Exception]


def check_unpacked(unpacked: int, size: int, where: object, error: type[Exception] = DataError) -> None:
    """Refuse what takes more memory than a file of `size` bytes can be meant to."""
    if unpacked > max(_LEAST, _RATIO * size):
        raise error(
            f"{where} takes {unpacked:,} bytes or more once unpacked, from {size:,}: more than is read of a file of its size. "
            "It is damaged, or made to fill the memory."
        )


def bounded_lines(stream: IO[Any], where: object, size: int | None, values: bool = False) -> Iterator[Any]:
    """The lines of a stream, each of a length that can be read.

    `size` is that of the file, where it was packed. `values`: lines are taken apart into values."""
    unpacked = 0
    for number, line in enumerate(iter(lambda: stream.readline(MOST_LINE + 1), stream.read(0)), 1):
        if len(line) > MOST_LINE:
            raise DataError(f"{where}, line {number} is longer than {MOST_LINE:,} characters: more than is read. Divide it.")
        if size is not None:
            marks = _MARKS if isinstance(line, str) else [mark.encode() for mark in _MARKS]
            unpacked += len(line) + _EACH * (1 + (sum(map(line.count, marks)) if values else 0))
            check_unpacked(unpacked, size, where)
        yield line


class Chunk(NamedTuple):
    """A part of a column, as the end of a parquet file describes it."""

    path: str
    is_bytes: bool
    values: int
    unpacked: int
    start: int


def parquet_chunks(path: os.PathLike[str], error: _Kind = DataError) -> list[Chunk]:
    """The parts of a parquet file's columns, read here: pyarrow ends the whole process over some that are damaged."""
    with open(path, "rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - 8))
        length = int.from_bytes(stream.read(4), "little")
        stream.seek(max(0, size - 8 - length))
        raw = stream.read(length)
    try:
        groups = _struct(io.BytesIO(raw), 0).get(4, [])
        facts = [chunk[3] for group in groups for chunk in group.get(1, [])]
        return [
            Chunk(".".join(part.decode() for part in one[3]), one[1] in (6, 7), one[5], one[6], one.get(11) or one[9])
            for one in facts
        ]
    except (LookupError, TypeError, ValueError, AttributeError, EOFError) as problem:
        raise error(f"{path} is not a readable parquet file: its description is damaged. Copy or download it again.") from problem


def _number(stream: IO[bytes]) -> int:
    number = shift = 0
    while shift < 70:
        byte = stream.read(1)
        if not byte:
            raise EOFError
        number |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return number
        shift += 7
    raise ValueError("a number without end")


def _value(stream: IO[bytes], kind: int, depth: int) -> Any:
    """A value in Thrift's compact way."""
    if kind in (1, 2):
        return kind == 1
    if kind == 3:
        return stream.read(1)
    if kind in (4, 5, 6):
        number = _number(stream)
        return (number >> 1) ^ -(number & 1)
    if kind == 7:
        return stream.read(8)
    if kind == 8:
        return stream.read(_number(stream))
    if kind in (9, 10):
        head = stream.read(1)[0]
        inner, count = head & 15, head >> 4
        count = _number(stream) if count == 15 else count
        return [stream.read(1) if inner in (1, 2) else _value(stream, inner, depth) for _ in range(count)]
    if kind == 12:
        return _struct(stream, depth + 1)
    raise ValueError(f"a value of kind {kind}")


def _struct(stream: IO[bytes], depth: int) -> dict[int, Any]:
    """The fields of a structure, by their numbers."""
    if depth > 30:
        raise ValueError("nested too deeply")
    found: dict[int, Any] = {}
    field = 0
    while (head := stream.read(1)) != b"\0":
        if not head:
            raise EOFError
        field = field + (head[0] >> 4) if head[0] >> 4 else _value(stream, 4, depth)
        found[field] = _value(stream, head[0] & 15, depth)
    return found


def check_parquet(table: Any, path: os.PathLike[str], columns: list[str] | None = None, error: _Kind = DataError) -> list[Chunk]:
    """Refuse a `ParquetFile` that declares more than its size allows; the parts of its columns."""
    size = os.stat(path).st_size
    chunks = [chunk for chunk in parquet_chunks(path, error) if columns is None or chunk.path.split(".")[0] in columns]
    values = Counter({"": table.metadata.num_rows})
    for chunk in chunks:
        values[chunk.path] += chunk.values
    most = max(values.values())
    if most > max(_LEAST_ROWS, size):
        raise error(
            f"{path} declares {most:,} values in a column, and has {size:,} bytes: more than is read of a file of its size. "
            "It is damaged, or made to fill the memory."
        )
    check_unpacked(sum(chunk.unpacked for chunk in chunks), size, path, error)
    return chunks


def parquet_batches(
    table: Any, path: os.PathLike[str], columns: list[str] | None = None, error: _Kind = DataError, rows: int = 1024
) -> Iterator[pa.RecordBatch]:
    """The rows of a `ParquetFile`, so many at a time at most, after a look at how many there are and how large."""
    chunks, size, unpacked = check_parquet(table, path, columns, error), os.stat(path).st_size, 0
    with open(path, "rb") as stream:
        texts = [chunk for chunk in chunks if chunk.is_bytes]
        longest = max((_dictionary(stream, chunk) for chunk in texts), default=1)
    for batch in table.iter_batches(batch_size=max(1, min(rows, _LEAST // max(longest, 1))), columns=columns):
        unpacked += batch.nbytes
        check_unpacked(unpacked, size, path, error)
        yield batch


def check_published(path: os.PathLike[str]) -> None:
    """Refuse a file of a dataset, before another library unpacks it, that takes more than its size allows."""
    with open(path, "rb") as stream:
        start = stream.read(6)
    if start[:4] == b"PAR1":
        _check_whole_parquet(path)
    elif zipfile.is_zipfile(path):  # with other bytes before it, too
        with zipfile.ZipFile(path) as archive:  # reading a member ends at the size that it declares
            check_unpacked(sum(member.file_size for member in archive.infolist()), os.stat(path).st_size, path)
    else:
        method = next((method for magic, method in _PACKED.items() if start.startswith(magic)), None)
        if method is not None:
            _check_packed(path, method)


_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4", b"\xfd7zXZ": "xz"}


def _check_packed(path: os.PathLike[str], method: str) -> None:
    """Unpack a stream to count it: nothing in it says how much it holds."""
    import pyarrow as pa

    size, unpacked = os.stat(path).st_size, 0
    try:
        with lzma.open(path) if method == "xz" else pa.input_stream(str(path), compression=method) as stream:
            while part := stream.read(2**20):
                unpacked += len(part)
                check_unpacked(unpacked, size, path)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise DataError(f"{path} is not a whole {method} file ({error}). Download it again.") from error


def _check_whole_parquet(path: os.PathLike[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(path) as table:
            size, rows = os.stat(path).st_size, table.metadata.num_rows
            with open(path, "rb") as stream:
                chunks = [chunk for chunk in check_parquet(table, path) if chunk.is_bytes]
                shared = sum(_dictionary(stream, chunk) for chunk in chunks)
            if shared * rows > max(_LEAST, _RATIO * size):  # only reading tells how often a long value is meant
                for _ in parquet_batches(table, path):
                    pass
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable parquet file: {error}. Download it again.") from error


def _dictionary(stream: IO[bytes], chunk: Chunk) -> int:
    """The size of a column's distinct values: one of them may be meant by every row, however few bytes the rows have."""
    stream.seek(max(0, chunk.start))
    head = stream.read(8)  # the page's kind (2: distinct values) and its unpacked size, in Thrift's compact way
    if head[:3] != b"\x15\x04\x15":
        return 0
    number = 0
    for place, byte in enumerate(head[3:]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    return number >> 1
