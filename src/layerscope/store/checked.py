"""Arrays and JSON that carry checksums, which are compared when they are read.

Arrays lie in safetensors files. The metadata of the header holds a CRC-32 of each array; an array
of three dimensions or more has one for each item of its first axis, so that an item can be read
alone. A JSON object holds a sha256 of its content. What is damaged is computed again.

A record names the files that a run or an export wrote, with the sha256 of each: the manifest of a
run, the layerscope.json of an export. Everything else in a folder is the user's and stays.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from layerscope.core.files import (
    CHECKSUM,
    checksum,
    matches_checksum,
    parse_json,
    read_json,
    sha256_of,
)
from layerscope.core.runs import MANIFEST, MARKER
from layerscope.errors import ExportError, LayerscopeError, RunFolderError
from layerscope.store import atomic

__all__ = [
    "ARRAYS",
    "ArrayFile",
    "DamagedFileError",
    "array_bytes",
    "check_files",
    "read_arrays",
    "read_checked_json",
    "read_or_discard",
    "write_arrays",
    "write_json",
]

log = logging.getLogger("layerscope")

ARRAYS = ".safetensors"
"""The ending of files that hold arrays."""

_CONTENT = "layerscope"
_CRC = "crc32"

T = TypeVar("T")


class DamagedFileError(RunFolderError):
    """A file whose content is not what was written."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} is damaged ({reason}). Run the command that wrote it again: "
            "what is damaged is computed again."
        )
        self.path = path
        self.reason = reason


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


# Arrays


def write_arrays(
    path: Path, arrays: Mapping[str, Any], facts: Mapping[str, str] | None = None
) -> None:
    """Write arrays, and texts beside them."""
    atomic.write_bytes(path, array_bytes(arrays, facts))


def array_bytes(arrays: Mapping[str, Any], facts: Mapping[str, str] | None = None) -> bytes:
    """Return the content of a file of arrays, and texts beside them."""
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    content = {
        "facts": dict(facts or {}),
        "arrays": {
            name: {
                "dtype": array.dtype.str,
                "shape": list(array.shape),
                "crc32": [_crc(item) for item in _items(array)],
            }
            for name, array in contiguous.items()
        },
    }
    text = json.dumps(content)
    metadata = {_CONTENT: text, _CRC: str(zlib.crc32(text.encode()))}
    return save(contiguous, metadata)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file, checked."""
    file = ArrayFile(path)
    return {name: file.read(name) for name in file.names}


class ArrayFile:
    """A file of arrays, whose header has been read and checked.

    Arrays are read, and compared with their checksums, when they are asked for.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _opened(path) as file:
            metadata = file.metadata() or {}
            text = metadata.get(_CONTENT)
            if text is None:
                raise DamagedFileError(path, "it carries no checksum")
            if metadata.get(_CRC) != str(zlib.crc32(text.encode())):
                raise DamagedFileError(path, "its header's checksum does not match")
        content = json.loads(text)
        self.facts: dict[str, str] = content["facts"]
        self._arrays: dict[str, dict[str, Any]] = content["arrays"]

    @property
    def names(self) -> list[str]:
        """The names of the arrays."""
        return list(self._arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array."""
        return tuple(self._arrays[name]["shape"])

    def read(self, name: str) -> np.ndarray:
        """Return a whole array."""
        with _opened(self.path) as file:
            array: np.ndarray = file.get_tensor(name)
        self._check_form(name, array, self.shape(name))
        for i, item in enumerate(_items(array)):
            self._compare(name, i, item)
        return array

    def read_part(self, name: str, i: int) -> np.ndarray:
        """Return one item of the first axis of an array of three dimensions or more."""
        with _opened(self.path) as file:
            item: np.ndarray = file.get_slice(name)[i]
        self._check_form(name, item, self.shape(name)[1:])
        self._compare(name, i, item)
        return item

    def _check_form(self, name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
        if array.shape != shape or array.dtype.str != self._arrays[name]["dtype"]:
            raise DamagedFileError(self.path, "its header does not match its checksums")

    def _compare(self, name: str, i: int, item: np.ndarray) -> None:
        if _crc(item) != self._arrays[name]["crc32"][i]:
            raise DamagedFileError(self.path, f"the checksum of {name!r} does not match")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file. What it cannot make of the content is damage; what the system
    refuses is not."""
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (OSError, MemoryError, DamagedFileError):
        raise
    except Exception as error:  # of many kinds, from a damaged file
        raise DamagedFileError(path, str(error) or type(error).__name__) from error


def _items(array: np.ndarray) -> np.ndarray | list[np.ndarray]:
    """Return the items of an array that have a checksum each."""
    return array if array.ndim >= 3 else [array]


def _crc(item: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(item).data if item.size else b"")


# JSON


def write_json(path: Path, value: dict[str, Any]) -> dict[str, Any]:
    """Write a JSON object with its checksum; return it as it is written."""
    whole = with_checksum(value)
    atomic.write_json(path, whole)
    return whole


def with_checksum(value: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object with its checksum in it."""
    bare = {name: inner for name, inner in atomic.plain(value).items() if name != CHECKSUM}
    return {**bare, CHECKSUM: checksum(bare)}


def read_checked_json(path: Path) -> dict[str, Any]:
    """Return a JSON object that layerscope wrote, without its checksum."""
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


# Files of either kind


def has_checksum(path: Path) -> bool:
    """Return whether a file says that it carries a checksum of layerscope's."""
    if path.suffix == ".json":
        try:
            return CHECKSUM in read_json(path, error=RunFolderError)
        except RunFolderError:
            return False
    try:
        with _opened(path) as file:
            return _CONTENT in (file.metadata() or {})
    except (OSError, DamagedFileError):
        return False


TABLES = "tables"
FILES = "files"
"""The keys of a manifest and of an export's layerscope.json under which the sha256 of every file
is."""

_EDITED = (".md", ".csv")  # for people, who may edit or remove them
# In `shards` of an unfinished run: states that are filled in where they lie, and what probes learn.
_WORKING = re.compile(r"[a-z]+\.(b?float\d\d|training\.safetensors)|\..*\.\d+-[0-9a-f]{8}\.part")


def recorded_files(folder: Path) -> dict[Path, str]:
    """Return the sha256 of every file that a run or an export below a folder says it wrote."""
    files: dict[Path, str] = {}
    for name, key in ((MANIFEST, TABLES), (MARKER, FILES)):
        for record in folder.rglob(name):
            with contextlib.suppress(LayerscopeError):
                listed = read_json(record, error=RunFolderError).get(key) or {}
                files |= {record.parent / file: sha for file, sha in listed.items()}
    return files


def record_files(folder: Path) -> None:
    """Write the sha256 of every file of an export into its layerscope.json."""
    files = {
        path.relative_to(folder).as_posix(): sha256_of(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MARKER
    }
    facts = read_json(folder / MARKER, error=ExportError)
    write_json(folder / MARKER, {**facts, FILES: files})


def check_files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Check every recorded file below a folder, and every one that carries a checksum.

    Yields each file with what is wrong with it, or nothing.
    """
    recorded = recorded_files(folder)
    for path, digest in sorted(recorded.items()):
        if path.name.endswith(_EDITED):
            continue
        if not path.is_file():
            yield path, "it is missing"
        else:
            yield path, "" if sha256_of(path) == digest else "its checksum does not match"
    checkable = {*folder.rglob("*.json"), *folder.rglob(f"*{ARRAYS}")}
    for path in sorted(checkable - {*recorded}):
        if path.name in (MANIFEST, MARKER) or has_checksum(path):
            try:
                read_checked_json(path) if path.suffix == ".json" else read_arrays(path)
            except DamagedFileError as error:
                yield path, error.reason
            else:
                yield path, ""


def remove_recorded(folder: Path) -> list[Path]:
    """Remove from a folder what runs and exports wrote there, and the folders left empty.

    Returns the files that stay, which are the user's.
    """
    if folder.is_symlink() or not folder.is_dir():
        return [folder] if os.path.lexists(folder) else []
    recorded = recorded_files(folder)
    strangers = []
    for path in sorted(folder.rglob("*"), reverse=True):  # what is inside comes before its folder
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):  # not empty
                path.rmdir()
        elif _is_as_recorded(path, recorded) or _is_working(path):
            path.unlink(missing_ok=True)
        else:
            strangers.append(path)
    with contextlib.suppress(OSError):
        folder.rmdir()
    return strangers


def give_back(paths: Iterable[Path], source: Path, target: Path) -> None:
    """Move the user's files from a folder that was replaced into the one that replaced it."""
    for path in paths:
        place = atomic.free_name(target / path.relative_to(source), ".old")
        place.parent.mkdir(parents=True, exist_ok=True)
        os.rename(path, place)
        log.warning("%s is not a file that layerscope recorded writing: it is kept", place)
    remove_recorded(source)  # the folders, empty by now


def _is_as_recorded(path: Path, recorded: dict[Path, str]) -> bool:
    """Return whether a record names a file; a card or a table that was edited is the user's."""
    is_edited = path.name.endswith(_EDITED)
    return path in recorded and (not is_edited or sha256_of(path) == recorded[path])


def _is_working(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    return _WORKING.fullmatch(path.name) is not None or has_checksum(path)
