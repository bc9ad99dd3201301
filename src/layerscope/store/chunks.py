"""The chunks of an embedding store: their files, and the index in memory that says which chunk and row hold which text.

A chunk is some texts with all that was computed for them at once: per kind of vector one array (sites, texts, D), so that
one site's rows lie together, and per-text numbers. Its index names the texts and is written last: no index, no chunk.
"""

from __future__ import annotations

import errno
import itertools
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from layerscope.errors import RunFolderError
from layerscope.store import atomic

KEY = np.dtype("S32")
"""A text's key. Numpy sorts and compares these as plain bytes; never convert one back, that strips zeros."""

Column = tuple[str, str, str | None]
"""What one lookup is about: ("vector", kind, site) or ("number", name, site), a site of None meaning all of them."""

Key = bytes
INDEX = ".index.json"
_ALIGN = 64


@dataclass(frozen=True)
class Number:
    """One number per text in a chunk: where it lies in the chunk's numbers file."""

    per_site: bool
    dtype: str
    offset: int


@dataclass(frozen=True)
class Chunk:
    """One finished chunk: `kinds` maps a kind of vector to its width, `numbers` a number's name to its place."""

    name: str
    rows: int
    dtype: str
    sites: tuple[str, ...]
    kinds: dict[str, int]
    numbers: dict[str, Number]
    sizes: tuple[int, ...]
    sums: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """CRC-32s: of each kind's vectors by site, and under "" of the numbers. Empty: an earlier version wrote the chunk."""

    @property
    def files(self) -> list[str]:
        """Names of the data files: one per kind, in order, then the numbers where there are any."""
        return [f"{self.name}.{i}.npy" for i in range(len(self.kinds))] + ([f"{self.name}.numbers"] if self.numbers else [])

    def columns(self) -> frozenset[Column]:
        """All that this chunk can answer."""
        vectors = {("vector", kind, site) for kind in self.kinds for site in self.sites}
        numbers = {
            ("number", n, site) for n, number in self.numbers.items() for site in (self.sites if number.per_site else (None,))
        }
        return frozenset(vectors | numbers)

    def map_kind(self, folder: Path, kind: str) -> np.ndarray:
        """The vectors (sites, texts, D) of one kind; they stay on disk until they are touched."""
        i = list(self.kinds).index(kind)
        shape = (len(self.sites), self.rows, self.kinds[kind])
        # The index says all that the header does, so the header is skipped: opening many small chunks stays quick.
        header = self.sizes[i] - int(np.prod(shape)) * np.dtype(self.dtype).itemsize
        return np.asarray(np.memmap(folder / self.files[i], dtype=self.dtype, mode="r", offset=header, shape=shape))

    def check(self, folder: Path, kind: str | None = None, site: str | None = None) -> None:
        """Raise ValueError where vectors (of one kind or all, at one site or all) or numbers are not what was written."""
        for name, sums in self.sums.items():
            if kind not in (None, name):
                continue
            if not name:
                if zlib.crc32((folder / self.files[-1]).read_bytes()) != sums[0]:
                    raise ValueError(f"the checksum of {self.files[-1]} does not match")
                continue
            number = list(self.kinds).index(name)
            size = self.rows * self.kinds[name] * np.dtype(self.dtype).itemsize
            # read rather than mapped: a map takes longer than the few kilobytes of one site
            with (folder / self.files[number]).open("rb", buffering=0) as file:
                for i, known in enumerate(self.sites):
                    if site in (None, known):
                        file.seek(self.sizes[number] - (len(self.sites) - i) * size)
                        if zlib.crc32(_read(file, size)) != sums[i]:
                            raise ValueError(f"the checksum of {name!r} at {known!r} does not match")

    def map_numbers(self, folder: Path) -> dict[str, np.ndarray]:
        """All numbers, (texts,) or (sites, texts), memory-mapped."""
        raw = np.asarray(np.memmap(folder / self.files[-1], dtype=np.uint8, mode="r"))
        arrays = {}
        for name, number in self.numbers.items():
            shape = (len(self.sites), self.rows) if number.per_site else (self.rows,)
            arrays[name] = np.frombuffer(raw, number.dtype, int(np.prod(shape)), number.offset).reshape(shape)
        return arrays


def _read(file: BinaryIO, size: int) -> bytes:
    """So many bytes, or fewer at the end of a file: one read may give less than was asked for."""
    parts = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_chunk(
    folder: Path,
    name: str,
    keys: np.ndarray,
    sites: Sequence[str],
    vectors: Mapping[str, np.ndarray],
    numbers: Mapping[str, np.ndarray],
    dtype: str,
) -> tuple[Chunk, int]:
    """Write a chunk, its index last; returns it and the bytes that it takes. Leaves nothing behind where it fails."""
    places, offset = {}, 0
    for number, array in numbers.items():
        places[number] = Number(array.ndim == 2, array.dtype.str, offset)
        offset += -(-array.nbytes // _ALIGN) * _ALIGN
    chunk = Chunk(name, len(keys), dtype, tuple(sites), {k: v.shape[2] for k, v in vectors.items()}, places, ())
    paths = [folder / file for file in chunk.files]
    index = folder / (name + INDEX)
    sums: dict[str, list[int]] = {}
    try:
        for path, (kind, array) in zip(paths, vectors.items(), strict=False):
            atomic.write(path, _vector_writer(kind, array, sites, dtype, sums.setdefault(kind, [])))
        if numbers:
            atomic.write(paths[-1], _number_writer(numbers.values(), sums.setdefault("", [])))
        sizes = tuple(path.stat().st_size for path in paths)
        content = {
            "rows": chunk.rows,
            "dtype": dtype,
            "sites": list(sites),
            "kinds": list(chunk.kinds.items()),
            "numbers": [[n, p.per_site, p.dtype, p.offset] for n, p in places.items()],
            "sizes": list(sizes),
            "sums": struct.pack(f"<{sum(map(len, sums.values()))}I", *(crc for kind in sums.values() for crc in kind)).hex(),
            "keys": keys.tobytes().hex(),
        }
        atomic.write_text(index, json.dumps({"crc32": _checksum(content), "content": content}))
    except BaseException:
        for path in paths:
            path.unlink(missing_ok=True)
        raise
    written = replace(chunk, sizes=sizes, sums={kind: tuple(values) for kind, values in sums.items()})
    return written, sum(sizes) + index.stat().st_size


def read_chunk(folder: Path, name: str) -> tuple[Chunk, np.ndarray]:
    """A chunk and its text keys. Raises ValueError where the index or its files are damaged."""
    try:
        index = json.loads((folder / (name + INDEX)).read_bytes())
        content = index["content"]
        if index["crc32"] != _checksum(content):
            raise ValueError("the checksum does not match")
        keys = np.frombuffer(bytes.fromhex(content["keys"]), dtype=KEY)
        numbers = {n: Number(per_site, dtype, offset) for n, per_site, dtype, offset in content["numbers"]}
        sites, kinds, sizes = tuple(content["sites"]), dict(content["kinds"]), tuple(content["sizes"])
        sums = _sums_of(content.get("sums"), kinds, len(sites), bool(numbers))
        chunk = Chunk(name, content["rows"], content["dtype"], sites, kinds, numbers, sizes, sums)
        # A map over a file that is too short would end the process when it is read, so it is checked here.
        for file, size in zip(chunk.files, sizes, strict=True):
            if (folder / file).stat().st_size != size:
                raise ValueError(f"{file} should have {size} bytes")
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise RunFolderError(f"cannot read {folder}: this process has too many open files (`ulimit -n 4096`).") from error
        raise ValueError(f"{type(error).__name__}: {error}") from error
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return chunk, keys


def _sums_of(stored: str | None, kinds: Iterable[str], sites: int, numbers: bool) -> dict[str, tuple[int, ...]]:
    """The checksums of a chunk by kind, as they follow each other in its index; none in one of an earlier version."""
    if stored is None:
        return {}
    listed = iter(np.frombuffer(bytes.fromhex(stored), dtype="<u4").tolist())
    sums = {kind: tuple(itertools.islice(listed, sites)) for kind in kinds}
    return {**sums, "": tuple(listed)} if numbers else sums


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _vector_writer(kind: str, array: np.ndarray, sites: Sequence[str], dtype: str, sums: list[int]) -> Callable[[BinaryIO], None]:
    """Writes an .npy file site by site, so that a conversion never needs a second copy of the whole; notes the checksums."""

    def fill(stream: BinaryIO) -> None:
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": array.shape}
        np.lib.format.write_array_header_1_0(stream, header)
        for site, rows in zip(sites, array, strict=True):
            # np.save would do, but where the disk fills up half-way its error does not say so.
            stored = _stored(kind, site, rows, dtype)
            sums.append(zlib.crc32(stored.data))
            stream.write(stored.data)

    return fill


def _stored(kind: str, site: str, rows: np.ndarray, dtype: str) -> np.ndarray:
    """Rows as they are stored; refuses to turn a large value into infinity."""
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(rows, dtype=dtype)
    narrower = stored.dtype.itemsize < rows.dtype.itemsize
    if narrower and np.isinf(stored).any() and np.any(np.isinf(stored) & ~np.isinf(rows)):
        largest = float(np.max(np.abs(rows), where=np.isfinite(rows), initial=0.0))
        raise RunFolderError(
            f"the vectors {kind!r} at {site!r} hold values up to {largest:.6g}, which do not fit {dtype} (at most "
            f"{float(np.finfo(dtype).max):.6g}). Store this model's embeddings as float32."
        )
    return stored


def _number_writer(arrays: Iterable[np.ndarray], sums: list[int]) -> Callable[[BinaryIO], None]:
    def fill(stream: BinaryIO) -> None:
        crc = 0
        for array in arrays:
            content = array.tobytes() + b"\0" * (-array.nbytes % _ALIGN)
            crc = zlib.crc32(content, crc)
            stream.write(content)
        sums.append(crc)

    return fill


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
        left = np.argsort(heads)  # neighbors in the index are looked up one after the other: kinder to the caches
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
        in_table: dict[frozenset[Column], np.ndarray] = {}
        everywhere = np.ones(len(keys), dtype=bool)
        for sources in {frozenset(t for t in self._tables if column in t) for column in columns}:
            somewhere = np.zeros(len(keys), dtype=bool)
            for source in sources:
                if source not in in_table:
                    in_table[source] = self._tables[source].find(keys)[0] >= 0
                somewhere |= in_table[source]
            everywhere &= somewhere
        return everywhere

    def serving(self, keys: np.ndarray, columns: Iterable[Column]) -> list[int]:
        """The chunks that hold something of these columns for any of the texts."""
        wanted = set(columns)
        found = [table.find(keys)[0] for has, table in self._tables.items() if wanted & has]
        return [int(i) for i in np.unique(np.concatenate([*found, np.empty(0, np.int32)])) if i >= 0]

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
