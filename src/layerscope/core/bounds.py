"""How much a file of somebody else may unpack to: a few bytes can ask for all the memory of a
machine.

A file may hold so many times its own size, and a small one some more. What it says of itself is
compared before it is read; what it does not say is counted while it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from layerscope.errors import DataError

_RATIO = 200  # ordinary texts are packed to a third or a tenth; gzip reaches 1,000 with one letter
_LEAST = 256 * 2**20  # bytes that any file may hold
_EACH = 64  # bytes that a text, or a value of JSON or CSV, takes besides its letters
_LEAST_ROWS = 500_000  # of a table; beyond them each takes a byte at least
MOST_LINE = 256 * 2**20
_MARKS = ",[{:;|\t"  # one of them stands before or after every value of JSON and CSV


def most_unpacked(size: int) -> int:
    """The bytes that a file of `size` bytes may take once unpacked."""
    return max(_LEAST, _RATIO * size)


def check_unpacked(
    unpacked: int, size: int, where: object, error: type[Exception] = DataError
) -> None:
    """Refuse what takes more memory than a file of `size` bytes can be meant to."""
    if unpacked > most_unpacked(size):
        raise error(
            f"{where} takes {unpacked:,} bytes or more once unpacked, from {size:,}: more than is read of a file of its size. "
            "It is damaged, or made to fill the memory."
        )


def check_rows(rows: int, size: int, where: object, error: type[Exception] = DataError) -> None:
    """Refuse a table of more rows, or of more values in a column, than a file of `size` bytes can
    be meant to have."""
    if rows > max(_LEAST_ROWS, size):
        raise error(
            f"{where} has {rows:,} values in a column, and {size:,} bytes: more than is read of a file of its size. "
            "It is damaged, or made to fill the memory."
        )


def bounded_lines(
    stream: IO[Any], where: object, size: int | None, values: bool = False
) -> Iterator[Any]:
    """The lines of a stream, each of a length that can be read.

    `size` is that of the file, where it was packed. `values`: lines are taken apart into values."""
    unpacked = 0
    for number, line in enumerate(iter(lambda: stream.readline(MOST_LINE + 1), stream.read(0)), 1):
        if len(line) > MOST_LINE:
            raise DataError(
                f"{where}, line {number} is longer than {MOST_LINE:,} characters: more than is read. Divide it."
            )
        if size is not None:
            marks = _MARKS if isinstance(line, str) else [mark.encode() for mark in _MARKS]
            unpacked += len(line) + _EACH * (1 + (sum(map(line.count, marks)) if values else 0))
            check_unpacked(unpacked, size, where)
        yield line
