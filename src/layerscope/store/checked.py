"""Arrays and JSON that carry a checksum: written with it, checked when they are read, computed
again where they are damaged.

- `.npy`: a trailer behind the data, which numpy does not read, has a CRC-32 of the header and of
  each part of the data;
- `.npz`: a trailer with the CRC-32 of the whole, besides the one that a zip file has per member;
- `.json`: a sha256 of the content, in the object itself;
- other bytes: a trailer with their CRC-32.
"""

from __future__ import annotations

import io
import logging
import math
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from layerscope.core.json import CHECKSUM, checksum, matches_checksum, parse_json, read_json
from layerscope.errors import RunFolderError
from layerscope.store import atomic

__all__ = [
    "read_array",
    "read_arrays",
    "read_checked_json",
    "read_or_discard",
    "write_array",
    "write_arrays",
    "write_json",
]

log = logging.getLogger("layerscope")

_MAGIC = b"LSCRC32\n"
_END = struct.Struct("<II8s")  # CRC-32 of the header and the list of sums, how many sums, the magic

T = TypeVar("T")


class DamagedFileError(RunFolderError):
    """A file whose content is not what was written."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} is damaged ({reason}). Run the command that wrote it again: what is damaged is computed again."
        )
        self.path, self.reason = path, reason


def read_or_discard(path: Path, read: Callable[[Path], T]) -> T | None:
    """Return what `read(path)` gives; None where there is no such file, or a damaged one, which is
    named and removed."""
    if not path.exists():
        return None
    try:
        return read(path)
    except DamagedFileError as error:
        log.warning("%s is damaged (%s): it is computed again", path, error.reason)
        with atomic.explained(path):
            path.unlink(missing_ok=True)
        return None


# --- JSON ---


def write_json(path: Path, value: dict[str, Any]) -> dict[str, Any]:
    """Write a JSON object with its checksum; returns it as it is written."""
    whole = with_checksum(value)
    atomic.write_json(path, whole)
    return whole


def with_checksum(value: dict[str, Any]) -> dict[str, Any]:
    """A JSON object with its checksum in it."""
    bare = {name: inner for name, inner in atomic.plain(value).items() if name != CHECKSUM}
    return {**bare, CHECKSUM: checksum(bare)}


def read_checked_json(path: Path) -> dict[str, Any]:
    """A JSON object that layerscope wrote, without its checksum."""
    try:
        value: dict[str, Any] = parse_json(path.read_bytes(), path, RunFolderError)
        if not isinstance(value, dict):
            raise RunFolderError(f"{path} is not a JSON object")
    except RunFolderError as error:
        raise DamagedFileError(path, "it is not readable JSON") from error
    if not matches_checksum(value):
        raise DamagedFileError(path, "its checksum does not match")
    value.pop(CHECKSUM, None)
    return value


# --- one array ---


@dataclass(frozen=True)
class CheckedArray:
    """An .npy file on disk. `sums` are the CRC-32s of its parts: of every item of the first axis,
    or of all of it."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    sums: tuple[int, ...]

    @classmethod
    def open(cls, path: Path) -> CheckedArray:
        """Look at a file's header and trailer, and that its size is what they say."""
        try:
            with path.open("rb") as stream:
                np.lib.format.read_magic(stream)
                shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
                offset = stream.tell()
                sums = _read_trailer(stream, offset, math.prod(shape) * dtype.itemsize)
        except (OSError, MemoryError):  # which say nothing about the file's content
            raise
        except Exception as error:  # of many kinds, from a damaged header
            raise DamagedFileError(path, str(error) or type(error).__name__) from error
        return cls(path, tuple(shape), dtype, offset, sums)

    def read(self) -> np.ndarray:
        """All of it, checked."""
        array = self._from_disk(0, self.shape)
        for i, part in enumerate([array] if len(self.sums) == 1 else array):
            self._check(i, part)
        return array

    def read_part(self, i: int, check: bool = True) -> np.ndarray:
        """One item of the first axis, checked unless `check` says that it was before."""
        part = self._from_disk(i, self.shape[1:])
        if check:
            if len(self.sums) == self.shape[0]:
                self._check(i, part)
            else:
                self.read()
        return part

    def _from_disk(self, i: int, shape: tuple[int, ...]) -> np.ndarray:
        count = math.prod(shape)
        place = self.offset + i * count * self.dtype.itemsize
        try:
            return np.fromfile(self.path, dtype=self.dtype, offset=place, count=count).reshape(
                shape
            )
        except ValueError as error:
            raise DamagedFileError(
                self.path, f"it was removed or changed while in use: {error}"
            ) from error

    def _check(self, i: int, part: np.ndarray) -> None:
        if _crc(part) != self.sums[i]:
            raise DamagedFileError(self.path, "its checksum does not match")


def write_array(path: Path, array: np.ndarray, parts: bool = False) -> None:
    """Write one array; with `parts`, every item of its first axis can be read and checked alone."""
    whole = np.asarray(array, order="C")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(whole))
    sums = [_crc(part) for part in (whole if parts else [whole])]
    listed = struct.pack(f"<{len(sums)}I", *sums)
    end = _END.pack(zlib.crc32(listed, zlib.crc32(header.getvalue())), len(sums), _MAGIC)

    def fill(stream: BinaryIO) -> None:
        # np.save would do, but where the disk fills up half-way its error does not say so.
        for content in (header.getvalue(), whole.data if whole.size else b"", listed, end):
            stream.write(content)

    atomic.write(path, fill)


def read_array(path: Path) -> np.ndarray:
    """An array, checked."""
    return CheckedArray.open(path).read()


def _crc(part: np.ndarray) -> int:
    return zlib.crc32(part.data if part.size else b"")


def _read_trailer(stream: BinaryIO, header: int, data: int) -> tuple[int, ...]:
    """Return the checksums behind the data."""
    size = stream.seek(0, 2)
    stream.seek(max(0, size - _END.size))
    end = stream.read()
    if len(end) != _END.size or not end.endswith(_MAGIC):
        raise ValueError("it carries no checksum")
    header_sum, count, _ = _END.unpack(end)
    if size != header + data + 4 * count + _END.size:
        raise ValueError("its size is not what its header says")
    stream.seek(header + data)
    listed = stream.read(4 * count)
    stream.seek(0)
    if zlib.crc32(listed, zlib.crc32(stream.read(header))) != header_sum:
        raise ValueError("its header's checksum does not match")
    return struct.unpack(f"<{count}I", listed)


# --- several arrays ---


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write several arrays (.npz), and the checksum of all behind them; numpy reads the file as any
    other."""
    archive = io.BytesIO()
    np.savez(archive, **arrays)  # type: ignore[arg-type]
    write_bytes(path, archive.getvalue())


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return several arrays, checked."""
    try:
        with np.load(io.BytesIO(read_bytes(path)), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (DamagedFileError, OSError, MemoryError):
        raise
    except Exception as error:  # of many kinds, from a damaged file
        raise DamagedFileError(path, str(error) or type(error).__name__) from error


# --- other bytes ---


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes and their checksum behind them."""
    atomic.write_bytes(path, with_trailer(content))


def with_trailer(content: bytes) -> bytes:
    """Return bytes with their checksum behind them."""
    return content + _END.pack(zlib.crc32(content), 0, _MAGIC)


def read_bytes(path: Path) -> bytes:
    """Bytes that `write_bytes` wrote, checked."""
    raw = path.read_bytes()
    if len(raw) < _END.size:
        raise DamagedFileError(path, "it is too short")
    content, (told, _, magic) = raw[: -_END.size], _END.unpack(raw[-_END.size :])
    if magic != _MAGIC or zlib.crc32(content) != told:
        raise DamagedFileError(path, "its checksum does not match")
    return content


def has_checksum(path: Path) -> bool:
    """Return whether a file carries a checksum of its own."""
    if path.suffix == ".json":
        try:
            return CHECKSUM in read_json(path, error=RunFolderError)
        except RunFolderError:
            return False
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - len(_MAGIC)))
        return stream.read() == _MAGIC


def check(path: Path) -> None:
    """Raise `DamagedFileError` where a file that carries a checksum is damaged."""
    if path.suffix == ".json":
        read_checked_json(path)
    elif path.suffix == ".npy":
        read_array(path)
    else:
        read_bytes(path)
