"""Parquet files that lie about themselves: what pyarrow wrote, with other words in its end and in
the heads of its pages."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from layerscope.core.parquet import _head, _struct

Fields = dict[tuple[int, int], Any]


def numbered(value: int) -> bytes:
    """A number in Thrift's compact way."""
    raw = bytearray()
    while value > 0x7F:
        raw.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(raw) + bytes([value])


def written(value: Any, kind: int) -> bytes:
    """A value in Thrift's compact way."""
    if kind in (1, 2):
        return b""
    if kind in (4, 5, 6):
        return numbered(value << 1 if value >= 0 else (-value << 1) - 1)
    if kind == 8:
        return numbered(len(value)) + value
    if kind == 9:
        inner = (
            12
            if value and isinstance(value[0], dict)
            else 8
            if value and isinstance(value[0], bytes)
            else 5
        )
        return (
            bytes([0xF0 | inner])
            + numbered(len(value))
            + b"".join(written(one, inner) for one in value)
        )
    if kind == 12:
        return (
            b"".join(
                bytes([k]) + written(number, 4) + written(one, k)
                for (number, k), one in value.items()
            )
            + b"\0"
        )
    return bytes(value)


def lie(path: Path, change: Callable[[Fields], None]) -> None:
    """Write a parquet file's end anew after a change to what it says."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[-8:-4], "little")
    footer = _struct(io.BytesIO(raw[-8 - length : -8]), 0)
    change(footer)
    told = written(footer, 12)
    path.write_bytes(raw[: -8 - length] + told + len(told).to_bytes(4, "little") + b"PAR1")


def parts(footer: Fields) -> list[Fields]:
    """What an end says of each part of a column."""
    return [chunk[3, 12] for group in footer[4, 9] for chunk in group[1, 9]]


def small(footer: Fields) -> None:
    """Say that every part is small."""
    for part in parts(footer):
        part[6, 6] = 10


def page(path: Path, part: int, head: Callable[[Fields], None], body: bytes | None = None) -> None:
    """Write a part's pages anew, the first with another head (and body), after all others, and let
    the part begin there."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[-8:-4], "little")
    footer = _struct(io.BytesIO(raw[-8 - length : -8]), 0)
    facts = parts(footer)[part]
    at = min(facts[9, 6], facts.get((11, 6), facts[9, 6]))
    end, place, made = at + facts[7, 6], len(raw) - 8 - length, b""
    while at < end:
        fields, size = _head(io.BytesIO(raw), at)
        content = raw[at + size : at + size + fields[3, 5]]
        at += size + fields[3, 5]
        if not made:
            content = content if body is None else body
            fields[3, 5] = len(content)
            head(fields)
        made += written(fields, 12) + content
    facts[9, 6], facts[7, 6] = place, len(made)
    facts.pop((11, 6), None)
    told = written(footer, 12)
    path.write_bytes(raw[: -8 - length] + made + told + len(told).to_bytes(4, "little") + b"PAR1")
