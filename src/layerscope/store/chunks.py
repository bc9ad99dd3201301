"""The chunks of an embedding store: their files, and the index in memory that says which chunk and
row hold which text.

A chunk is some texts with all that was computed for them at once: per kind of vector one array
(sites, texts, D), so that one site's rows lie together, and per-text numbers. Its index names the
texts and is written last: no index, no chunk.
"""

from __future__ import annotations

import itertools
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from layerscope.errors import RunFolderError, os_advice
from layerscope.store import atomic

Key = bytes
KEY_BYTES = 32
INDEX = ".index.json"
_ALIGN = 64

Column = tuple[str, str, str | None]
"""What one lookup is about: ("vector", kind, site) or ("number", name, site), a site of None
meaning all of them."""


@dataclass(frozen=True)
class Number:
    """One number per text in a chunk: where it lies in the chunk's numbers file."""

    per_site: bool
    dtype: str
    offset: int


@dataclass(frozen=True)
class Chunk:
    """One finished chunk: `kinds` maps a kind of vector to its width, `numbers` a number's name to
    its place."""

    name: str
    rows: int
    dtype: str
    sites: tuple[str, ...]
    kinds: dict[str, int]
    numbers: dict[str, Number]
    sizes: tuple[int, ...]
    sums: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """CRC-32s: of each kind's vectors by site, and under "" of the numbers."""

    @property
    def files(self) -> list[str]:
        """Names of the data files: one per kind, in order, then the numbers where there are any."""
        return [f"{self.name}.{i}.npy" for i in range(len(self.kinds))] + (
            [f"{self.name}.numbers"] if self.numbers else []
        )

    def columns(self) -> frozenset[Column]:
        """All that this chunk can answer."""
        return _columns(
            self.sites,
            tuple(self.kinds),
            tuple((name, number.per_site) for name, number in self.numbers.items()),
        )

    def read(self, folder: Path, kind: str, site: str, check: bool = True) -> np.ndarray:
        """The vectors (texts, D) of one kind at one site. Raises ValueError where they are not what
        was written."""
        number, at, width = list(self.kinds).index(kind), self.sites.index(site), self.kinds[kind]
        size = self.rows * width * np.dtype(self.dtype).itemsize
        # The index says all that the file's header does, so the header is skipped: reading many
        # small chunks stays quick. So does a plain name: a Path takes as long as the reading.
        with open(f"{folder}/{self.name}.{number}.npy", "rb", buffering=0) as file:
            file.seek(self.sizes[number] - (len(self.sites) - at) * size)
            raw = _read(file, size)
        if check and zlib.crc32(raw) != self.sums[kind][at]:
            raise ValueError(f"the checksum of {kind!r} at {site!r} does not match")
        return np.frombuffer(raw, self.dtype).reshape(self.rows, width)

    def read_numbers(self, folder: Path, check: bool = True) -> dict[str, np.ndarray]:
        """All numbers, (texts,) or (sites, texts). Raises ValueError where they are not what was
        written."""
        if not self.numbers:
            return {}
        raw = (folder / self.files[-1]).read_bytes()
        if check and zlib.crc32(raw) != self.sums[""][0]:
            raise ValueError(f"the checksum of {self.files[-1]} does not match")
        arrays = {}
        for name, number in self.numbers.items():
            shape = (len(self.sites), self.rows) if number.per_site else (self.rows,)
            arrays[name] = np.frombuffer(
                raw, number.dtype, int(np.prod(shape)), number.offset
            ).reshape(shape)
        return arrays


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
    keys: Sequence[Key],
    sites: Sequence[str],
    vectors: Mapping[str, np.ndarray],
    numbers: Mapping[str, np.ndarray],
    dtype: str,
) -> Chunk:
    """Write a chunk, its index last, and return it. Leaves nothing behind where it fails."""
    places, offset = {}, 0
    for number, array in numbers.items():
        places[number] = Number(array.ndim == 2, array.dtype.str, offset)
        offset += -(-array.nbytes // _ALIGN) * _ALIGN
    chunk = Chunk(
        name,
        len(keys),
        dtype,
        tuple(sites),
        {k: v.shape[2] for k, v in vectors.items()},
        places,
        (),
    )
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
            "sums": struct.pack(
                f"<{sum(map(len, sums.values()))}I",
                *(crc for kind in sums.values() for crc in kind),
            ).hex(),
            "keys": b"".join(keys).hex(),
        }
        atomic.write_text(index, json.dumps({"crc32": _checksum(content), "content": content}))
    except BaseException:
        for path in paths:
            path.unlink(missing_ok=True)
        raise
    return replace(chunk, sizes=sizes, sums={kind: tuple(values) for kind, values in sums.items()})


def read_chunk(folder: Path, name: str) -> tuple[Chunk, list[Key]]:
    """A chunk and its text keys. Raises ValueError where the index or its files are damaged."""
    try:
        index = json.loads((folder / (name + INDEX)).read_bytes())
        content = index["content"]
        if index["crc32"] != _checksum(content):
            raise ValueError("the checksum does not match")
        keys = bytes.fromhex(content["keys"])
        numbers = {
            n: Number(per_site, dtype, offset) for n, per_site, dtype, offset in content["numbers"]
        }
        sites, kinds, sizes = (
            tuple(content["sites"]),
            dict(content["kinds"]),
            tuple(content["sizes"]),
        )
        sums = _sums_of(content["sums"], kinds, len(sites), bool(numbers))
        chunk = Chunk(name, content["rows"], content["dtype"], sites, kinds, numbers, sizes, sums)
        for file, size in zip(chunk.files, sizes, strict=True):
            if (folder / file).stat().st_size != size:
                raise ValueError(f"{file} should have {size} bytes")
    except OSError as error:
        if advice := os_advice(error):
            raise RunFolderError(f"cannot read {folder}: {advice}") from error
        raise ValueError(f"{type(error).__name__}: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return chunk, [keys[i : i + KEY_BYTES] for i in range(0, len(keys), KEY_BYTES)]


def _sums_of(
    stored: str, kinds: Iterable[str], sites: int, numbers: bool
) -> dict[str, tuple[int, ...]]:
    """Return the checksums of a chunk by kind, as they follow each other in its index."""
    listed = iter(np.frombuffer(bytes.fromhex(stored), dtype="<u4").tolist())
    sums = {kind: tuple(itertools.islice(listed, sites)) for kind in kinds}
    return {**sums, "": tuple(listed)} if numbers else sums


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _vector_writer(
    kind: str, array: np.ndarray, sites: Sequence[str], dtype: str, sums: list[int]
) -> Callable[[BinaryIO], None]:
    """Writes an .npy file site by site, so that a conversion never needs a second copy of the
    whole; notes the checksums."""

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


def _number_writer(arrays: Iterable[np.ndarray], sums: list[int]) -> Callable[[BinaryIO], None]:
    def fill(stream: BinaryIO) -> None:
        crc = 0
        for array in arrays:
            content = array.tobytes() + b"\0" * (-array.nbytes % _ALIGN)
            crc = zlib.crc32(content, crc)
            stream.write(content)
        sums.append(crc)

    return fill


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
