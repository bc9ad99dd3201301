"""The chunks of an embedding store: their files, and the index in memory that says which chunk and
row hold which text.

A chunk is some texts with all that was computed for them at once. One file holds it: for each kind
of vector the rows (texts, D) of one site after those of another, then the numbers of the texts. Its
index names the texts and is written last: no index, no chunk.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from layerscope.errors import RunFolderError, os_advice
from layerscope.store import atomic

Key = bytes
KEY_BYTES = 32
INDEX, DATA = ".index.json", ".chunk"

Column = tuple[str, str, str | None]
"""What one lookup is about: ("vector", kind, site) or ("number", name, site), a site of None
meaning all of them."""


@dataclass(frozen=True)
class Chunk:
    """One finished chunk: `kinds` maps a kind of vector to its width, `numbers` a number's name to
    its type and whether there is one per site. `sums` are the CRC-32s of all that its file holds,
    in order."""

    name: str
    rows: int
    dtype: str
    sites: tuple[str, ...]
    kinds: dict[str, int]
    numbers: dict[str, tuple[str, bool]]
    sums: tuple[int, ...]

    def columns(self) -> frozenset[Column]:
        """All that this chunk can answer."""
        per_site = tuple((name, each) for name, (_, each) in self.numbers.items())
        return _columns(self.sites, tuple(self.kinds), per_site)

    def _blocks(self) -> Iterable[tuple[str, int, str, tuple[int, ...]]]:
        """Yield every kind and number in the order of the file: how many blocks it has there (one
        per site of a kind), and their type and shape."""
        for kind, width in self.kinds.items():
            yield kind, len(self.sites), self.dtype, (self.rows, width)
        for name, (dtype, per_site) in self.numbers.items():
            yield name, 1, dtype, (len(self.sites), self.rows) if per_site else (self.rows,)

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return sum(
            count * math.prod(shape) * np.dtype(dtype).itemsize
            for _, count, dtype, shape in self._blocks()
        )

    def read(self, folder: Path, name: str, site: str | None, check: bool = True) -> np.ndarray:
        """Return the vectors (texts, D) of one kind at a site, or without a site a number: (texts,)
        or (sites, texts). Raises ValueError where they are not what was written."""
        at, offset = 0, 0
        for block, count, dtype, shape in self._blocks():
            size = math.prod(shape) * np.dtype(dtype).itemsize
            if block == name:
                place = 0 if site is None else self.sites.index(site)
                break
            at, offset = at + count, offset + count * size
        # A plain name: a Path takes as long as the reading of a small chunk.
        with open(f"{folder}/{self.name}{DATA}", "rb") as file:
            file.seek(offset + place * size)
            raw = file.read(size)
        if check and zlib.crc32(raw) != self.sums[at + place]:
            raise ValueError(f"the checksum of {name!r} does not match")
        return np.frombuffer(raw, dtype).reshape(shape)


@lru_cache(maxsize=256)  # almost all chunks of a space are alike
def _columns(
    sites: tuple[str, ...], kinds: tuple[str, ...], numbers: tuple[tuple[str, bool], ...]
) -> frozenset[Column]:
    vectors = {("vector", kind, site) for kind in kinds for site in sites}
    return frozenset(
        vectors
        | {
            ("number", name, site)
            for name, per_site in numbers
            for site in (sites if per_site else (None,))
        }
    )


def write_chunk(
    folder: Path,
    name: str,
    keys: Sequence[Key],
    sites: Sequence[str],
    vectors: Mapping[str, np.ndarray],
    numbers: Mapping[str, np.ndarray],
    dtype: str,
) -> Chunk:
    """Write a chunk, its index last, and return it. Leaves nothing behind where it fails."""
    sums: list[int] = []

    def fill(stream: BinaryIO) -> None:
        # Site by site, so that a conversion never needs a second copy of the whole.
        stored = (
            _stored(kind, site, rows, dtype)
            for kind, array in vectors.items()
            for site, rows in zip(sites, array, strict=True)
        )
        for block in itertools.chain(stored, map(np.ascontiguousarray, numbers.values())):
            sums.append(zlib.crc32(block.data))
            stream.write(block.data)

    data = folder / (name + DATA)
    try:
        atomic.write(data, fill)
        content = {
            "rows": len(keys),
            "dtype": dtype,
            "sites": list(sites),
            "kinds": [[kind, array.shape[2]] for kind, array in vectors.items()],
            "numbers": [[n, array.dtype.str, array.ndim == 2] for n, array in numbers.items()],
            "sums": struct.pack(f"<{len(sums)}I", *sums).hex(),
            "keys": b"".join(keys).hex(),
        }
        whole = {"crc32": _checksum(content), "content": content}
        atomic.write_text(folder / (name + INDEX), json.dumps(whole))
    except BaseException:
        data.unlink(missing_ok=True)
        raise
    return _chunk(name, content)


def read_chunk(folder: Path, name: str) -> tuple[Chunk, list[Key]]:
    """A chunk and its text keys. Raises ValueError where the index or its file is damaged."""
    try:
        index = json.loads((folder / (name + INDEX)).read_bytes())
        content = index["content"]
        if index["crc32"] != _checksum(content):
            raise ValueError("the checksum does not match")
        chunk, keys = _chunk(name, content), bytes.fromhex(content["keys"])
        if (folder / (name + DATA)).stat().st_size != chunk.size:
            raise ValueError(f"{name + DATA} should have {chunk.size} bytes")
    except OSError as error:
        if advice := os_advice(error):
            raise RunFolderError(f"cannot read {folder}: {advice}") from error
        raise ValueError(f"{type(error).__name__}: {error}") from error
    except (KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return chunk, [keys[i : i + KEY_BYTES] for i in range(0, len(keys), KEY_BYTES)]


def _chunk(name: str, content: dict[str, Any]) -> Chunk:
    return Chunk(
        name,
        content["rows"],
        content["dtype"],
        tuple(content["sites"]),
        dict(content["kinds"]),
        {number: (dtype, per_site) for number, dtype, per_site in content["numbers"]},
        tuple(np.frombuffer(bytes.fromhex(content["sums"]), dtype="<u4").tolist()),
    )


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _stored(kind: str, site: str, rows: np.ndarray, dtype: str) -> np.ndarray:
    """Rows as they are stored; refuses to turn a large value into infinity."""
    half = rows.dtype == np.float32 and dtype == "float16"
    with np.errstate(over="ignore"):
        stored = _halved(rows) if half else np.ascontiguousarray(rows, dtype=dtype)
    infinite = (stored.view(np.uint16) & 0x7FFF) == 0x7C00 if half else np.isinf(stored)
    if infinite.any() and np.any(infinite & ~np.isinf(rows)):
        largest = float(np.max(np.abs(rows), where=np.isfinite(rows), initial=0.0))
        raise RunFolderError(
            f"the vectors {kind!r} at {site!r} hold values up to {largest:.6g}, which do not fit {dtype} (at most "
            f"{float(np.finfo(dtype).max):.6g}). Store this model's embeddings as float32."
        )
    return stored


def _halved(rows: np.ndarray) -> np.ndarray:
    """In float16, by torch: numpy takes ten times as long."""
    import torch  # here: most of what is done with a store does without

    return torch.from_numpy(np.require(rows, requirements=["C", "W"])).half().numpy()


class ChunkIndex:
    """All chunks of a space and where each text lies, in memory: for each set of columns, the place
    of every text."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self._tables: dict[
            frozenset[Column], dict[Key, int]
        ] = {}  # a place is the chunk's number and, in 32 bits, the row

    def add(self, chunk: Chunk, keys: Sequence[Key]) -> None:
        """Take a finished chunk into the index."""
        first = len(self.chunks) << 32
        self.chunks.append(chunk)
        self._tables.setdefault(chunk.columns(), {}).update(
            zip(keys, range(first, first + len(keys)), strict=True)
        )

    def holds(self, keys: Sequence[Key], columns: Iterable[Column]) -> np.ndarray:
        """Whether each text has all of these columns, be it from several chunks."""
        everywhere = np.ones(len(keys), dtype=bool)
        for sources in {
            frozenset(table for table in self._tables if column in table) for column in columns
        }:
            everywhere &= self._places(keys, [self._tables[source] for source in sources]) >= 0
        return everywhere

    def serving(self, keys: Sequence[Key], columns: Iterable[Column]) -> list[int]:
        """The chunks that hold something of these columns for any of the texts."""
        wanted = set(columns)
        found = [self._places(keys, [table]) for has, table in self._tables.items() if wanted & has]
        return [
            int(i)
            for i in np.unique(np.concatenate([*found, np.empty(0, np.int64)]) >> 32)
            if i >= 0
        ]

    def locate(self, keys: Sequence[Key], column: Column) -> tuple[np.ndarray, np.ndarray]:
        """The chunk (-1 where there is none) and row that hold a column of each text."""
        places = self._places(
            keys, [table for columns, table in self._tables.items() if column in columns]
        )
        return places >> 32, places & 0xFFFFFFFF

    @staticmethod
    def _places(keys: Sequence[Key], tables: Iterable[dict[Key, int]]) -> np.ndarray:
        """Where each text lies in one of the tables; -1 where it is in none."""
        places = np.full(len(keys), -1)
        for table in tables:  # usually one; looked up without a loop of Python's
            places = np.maximum(
                places, np.fromiter(map(table.get, keys, itertools.repeat(-1)), np.int64, len(keys))
            )
        return places

    def texts(self) -> int:
        """How many distinct texts there are."""
        return len(set().union(*self._tables.values()))
