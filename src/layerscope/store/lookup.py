"""Which chunk and row hold which text: the index of a space, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from layerscope.store.chunks import KEY, Chunk, Column

Key = bytes


def as_keys(keys: Sequence[Key]) -> np.ndarray:
    """Text keys as one array of 32-byte strings."""
    for key in keys:
        if len(key) != KEY.itemsize:
            raise ValueError(f"a text key has {KEY.itemsize} bytes (see text_key), not {len(key)}: {key[:40]!r}")
    return np.frombuffer(b"".join(keys), dtype=KEY)


def _heads(keys: np.ndarray) -> np.ndarray:
    """The first 8 bytes as numbers, in the same order as the keys: several times quicker to search."""
    return keys.view(">u8").reshape(len(keys), KEY.itemsize // 8)[:, 0].astype(np.uint64)


@dataclass(frozen=True)
class _Segment:
    """Text keys in order, each once, with the chunk and row that hold them."""

    keys: np.ndarray
    heads: np.ndarray
    chunk: np.ndarray
    row: np.ndarray

    @staticmethod
    def sorted(keys: np.ndarray, chunk: np.ndarray, row: np.ndarray) -> _Segment:
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        first = np.ones(len(keys), dtype=bool)
        first[1:] = keys[1:] != keys[:-1]
        keys, order = keys[first], order[first]
        return _Segment(keys, _heads(keys), chunk[order], row[order])

    def find(self, keys: np.ndarray, heads: np.ndarray) -> np.ndarray:
        """Positions of keys, -1 where they are not here."""
        at = np.minimum(np.searchsorted(self.heads, heads), len(self.keys) - 1)
        hit = self.keys[at] == keys
        # Different texts may share 8 bytes; then the whole key decides.
        close = np.flatnonzero(~hit & (self.heads[at] == heads))
        if len(close):
            at[close] = np.minimum(np.searchsorted(self.keys, keys[close]), len(self.keys) - 1)
            hit[close] = self.keys[at[close]] == keys[close]
        return np.where(hit, at, -1)


class _Table:
    """Where each text lies among chunks that hold the same columns.

    Sorted segments, merged when two are of like size: adding stays cheap however many chunks there are, and a lookup goes
    through a handful of segments. 48 bytes per text.
    """

    def __init__(self) -> None:
        self.segments: list[_Segment] = []

    def add(self, keys: np.ndarray, chunk: int) -> None:
        rows = np.arange(len(keys), dtype=np.int32)
        segments = [*self.segments, _Segment.sorted(keys, np.full(len(keys), chunk, dtype=np.int32), rows)]
        while len(segments) > 1 and len(segments[-2].keys) <= 2 * len(segments[-1].keys):
            b, a = segments.pop(), segments.pop()
            joined = (np.concatenate(pair) for pair in ((a.keys, b.keys), (a.chunk, b.chunk), (a.row, b.row)))
            segments.append(_Segment.sorted(*joined))
        self.segments = segments

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The chunk (-1 where there is none) and row of each key."""
        chunk, row = np.full(len(keys), -1, dtype=np.int32), np.zeros(len(keys), dtype=np.int32)
        heads = _heads(keys)
        left = np.argsort(heads)  # neighbours in the index are looked up one after the other: kinder to the caches
        for segment in self.segments:
            at = segment.find(keys[left], heads[left])
            hit = at >= 0
            chunk[left[hit]], row[left[hit]] = segment.chunk[at[hit]], segment.row[at[hit]]
            left = left[~hit]
            if not len(left):
                break
        return chunk, row


class ChunkIndex:
    """All chunks of a space and where each text lies, in memory."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self._tables: dict[frozenset[Column], _Table] = {}
        self._columns: dict[Any, frozenset[Column]] = {}
        self._texts: int | None = None

    def add(self, chunk: Chunk, keys: np.ndarray) -> None:
        """Take a finished chunk into the index."""
        per_site = tuple((name, number.per_site) for name, number in chunk.numbers.items())
        alike = (chunk.sites, tuple(chunk.kinds), per_site)  # almost all chunks of a space are alike: work this out once
        columns = self._columns.get(alike) or self._columns.setdefault(alike, chunk.columns())
        self.chunks.append(chunk)
        self._tables.setdefault(columns, _Table()).add(keys, len(self.chunks) - 1)
        self._texts = None

    def knows(self, column: Column) -> bool:
        """Whether any chunk holds this column."""
        return any(column in columns for columns in self._tables)

    def holds(self, keys: np.ndarray, columns: Iterable[Column]) -> np.ndarray:
        """Whether each text has all of these columns, be it from several chunks."""
        found: dict[frozenset[Column], np.ndarray] = {}
        held = np.ones(len(keys), dtype=bool)
        for sources in {frozenset(t for t in self._tables if column in t) for column in columns}:
            somewhere = np.zeros(len(keys), dtype=bool)
            for source in sources:
                if source not in found:
                    found[source] = self._tables[source].find(keys)[0] >= 0
                somewhere |= found[source]
            held &= somewhere
        return held

    def locate(self, keys: np.ndarray, column: Column) -> tuple[np.ndarray, np.ndarray]:
        """The chunk (-1 where there is none) and row that hold a column of each text."""
        chunk, row = np.full(len(keys), -1, dtype=np.int32), np.zeros(len(keys), dtype=np.int32)
        for columns, table in self._tables.items():
            left = np.flatnonzero(chunk < 0)
            if len(left) and column in columns:
                chunk[left], row[left] = table.find(keys[left])
        return chunk, row

    def texts(self) -> int:
        """How many distinct texts there are."""
        if self._texts is None:
            segments = [segment.keys for table in self._tables.values() for segment in table.segments]
            distinct = segments[0] if len(segments) == 1 else np.unique(np.concatenate([np.empty(0, KEY), *segments]))
            self._texts = len(distinct)
        return self._texts
