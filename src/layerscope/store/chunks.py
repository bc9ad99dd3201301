"""The files of one chunk of an embedding store.

A chunk is some texts with all that was computed for them at once: per kind of vector one array (sites, texts, D), so that
one site's rows lie together, and per-text numbers. Its index names the texts and is written last: no index, no chunk.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from layerscope.errors import RunFolderError
from layerscope.store import atomic

KEY = np.dtype("S32")
"""A text's key. Numpy sorts and compares these as plain bytes; never convert one back, that strips zeros."""

Column = tuple[str, str, str | None]
"""What one lookup is about: ("vector", kind, site) or ("number", name, site), a site of None meaning all of them."""

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

    @property
    def files(self) -> list[str]:
        """Names of the data files: one per kind, in order, then the numbers where there are any."""
        return [f"{self.name}.{i}.npy" for i in range(len(self.kinds))] + ([f"{self.name}.numbers"] if self.numbers else [])

    def columns(self) -> frozenset[Column]:
        """All that this chunk can answer."""
        vectors = {("vector", kind, site) for kind in self.kinds for site in self.sites}
        numbers = {("number", n, site) for n, held in self.numbers.items() for site in (self.sites if held.per_site else (None,))}
        return frozenset(vectors | numbers)

    def map_kind(self, folder: Path, kind: str) -> np.ndarray:
        """The vectors (sites, texts, D) of one kind; they stay on disk until they are touched."""
        i = list(self.kinds).index(kind)
        shape = (len(self.sites), self.rows, self.kinds[kind])
        # The index says all that the header does, so the header is skipped: opening many small chunks stays quick.
        header = self.sizes[i] - int(np.prod(shape)) * np.dtype(self.dtype).itemsize
        return np.asarray(np.memmap(folder / self.files[i], dtype=self.dtype, mode="r", offset=header, shape=shape))

    def map_numbers(self, folder: Path) -> dict[str, np.ndarray]:
        """All numbers, (texts,) or (sites, texts), memory-mapped."""
        raw = np.asarray(np.memmap(folder / self.files[-1], dtype=np.uint8, mode="r"))
        arrays = {}
        for name, number in self.numbers.items():
            shape = (len(self.sites), self.rows) if number.per_site else (self.rows,)
            arrays[name] = np.frombuffer(raw, number.dtype, int(np.prod(shape)), number.offset).reshape(shape)
        return arrays


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
    try:
        for path, (kind, array) in zip(paths, vectors.items(), strict=False):
            atomic.write(path, _vector_writer(kind, array, sites, dtype))
        if numbers:
            atomic.write(paths[-1], _number_writer(numbers.values()))
        sizes = tuple(path.stat().st_size for path in paths)
        content = {
            "rows": chunk.rows,
            "dtype": dtype,
            "sites": list(sites),
            "kinds": list(chunk.kinds.items()),
            "numbers": [[n, p.per_site, p.dtype, p.offset] for n, p in places.items()],
            "sizes": list(sizes),
            "keys": keys.tobytes().hex(),
        }
        atomic.write_text(index, json.dumps({"crc32": _checksum(content), "content": content}))
    except BaseException:
        for path in paths:
            path.unlink(missing_ok=True)
        raise
    return Chunk(name, chunk.rows, dtype, chunk.sites, chunk.kinds, places, sizes), sum(sizes) + index.stat().st_size


def read_chunk(folder: Path, name: str) -> tuple[Chunk, np.ndarray]:
    """A chunk and its text keys. Raises ValueError where the index or its files are damaged."""
    try:
        held = json.loads((folder / (name + INDEX)).read_bytes())
        content = held["content"]
        if held["crc32"] != _checksum(content):
            raise ValueError("the checksum does not match")
        keys = np.frombuffer(bytes.fromhex(content["keys"]), dtype=KEY)
        numbers = {n: Number(per_site, dtype, offset) for n, per_site, dtype, offset in content["numbers"]}
        sites, kinds, sizes = tuple(content["sites"]), dict(content["kinds"]), tuple(content["sizes"])
        chunk = Chunk(name, content["rows"], content["dtype"], sites, kinds, numbers, sizes)
        # A map over a file that is too short would end the process when it is read, so this is found out here.
        for file, size in zip(chunk.files, sizes, strict=True):
            if (folder / file).stat().st_size != size:
                raise ValueError(f"{file} should have {size} bytes")
    except (KeyError, TypeError, AttributeError, OSError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return chunk, keys


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _vector_writer(kind: str, array: np.ndarray, sites: Sequence[str], dtype: str) -> Callable[[BinaryIO], None]:
    """Writes an .npy file site by site, so that a conversion never needs a second copy of the whole."""

    def fill(stream: BinaryIO) -> None:
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": array.shape}
        np.lib.format.write_array_header_1_0(stream, header)
        for site, rows in zip(sites, array, strict=True):
            # np.save would do, but where the disk fills up half-way its error does not say so.
            stream.write(_stored(kind, site, rows, dtype).data)

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


def _number_writer(arrays: Iterable[np.ndarray]) -> Callable[[BinaryIO], None]:
    def fill(stream: BinaryIO) -> None:
        for array in arrays:
            stream.write(array.tobytes() + b"\0" * (-array.nbytes % _ALIGN))

    return fill
