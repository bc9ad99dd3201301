"""The vector store: each text is encoded once, and later tasks, layers, readouts and runs read its
vectors back.

A store is a folder of spaces. A space holds what one model yields under one set of circumstances
(weights, revision, template, length): two descriptions that differ in anything are two spaces. A
space is a folder of shards; its listing says which there are. A shard is one safetensors file of
vectors and numbers that were computed at once, with the keys of their texts. It is there whole or
not at all. Several processes may read and write a space at once, and may be killed at any time.
Nobody prunes while another process works.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.core.options import describe_size
from layerscope.errors import LayerscopeError, RunFolderError, os_advice
from layerscope.store import atomic
from layerscope.store.checked import ARRAYS, ArrayFile, DamagedFileError, write_arrays

__all__ = [
    "DEFAULT_SIZE",
    "MissingVectorsError",
    "Shard",
    "VectorSpace",
    "VectorStore",
    "text_key",
]

DEFAULT_SIZE = 10 * 2**30
DESCRIPTION = "space.json"
"""The file that describes a space. Its modification time is when the space was last opened."""

_FORMAT = 3
_ABANDONED_S = 3600.0  # a younger temporary file may be another process's shard in the making

log = logging.getLogger("layerscope")


KEY_BYTES = 32
VECTORS = "vectors/"
NUMBERS = "numbers/"
_KEYS = "keys"
_SITES = "sites"


def text_key(text: str) -> bytes:
    """Return the key of a text: 32 bytes that no other text shares."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True)
class Shard:
    """The vectors and numbers of some texts.

    `vectors` maps a reading to an array (sites, texts, width), `numbers` a name to an array
    (texts,) or (sites, texts).
    """

    keys: Sequence[bytes]
    sites: Sequence[str]
    vectors: Mapping[str, np.ndarray]
    numbers: Mapping[str, np.ndarray] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the file."""
        keys = np.frombuffer(b"".join(self.keys), dtype=np.uint8).reshape(-1, KEY_BYTES)
        arrays: dict[str, np.ndarray] = {_KEYS: keys}
        for reading, rows in self.vectors.items():
            arrays[VECTORS + reading] = rows
        for name, values in self.numbers.items():
            arrays[NUMBERS + name] = values
        write_arrays(path, arrays, {_SITES: json.dumps(list(self.sites))})


Column = tuple[str, str | None]
"""The name of an array and a site; no site for numbers that a text has once."""


class StoredShard:
    """A shard on disk, whose header and keys have been read."""

    def __init__(self, path: Path) -> None:
        self.file = ArrayFile(path)
        self.sites: tuple[str, ...] = tuple(json.loads(self.file.facts[_SITES]))
        self.keys = [bytes(key) for key in self.file.read(_KEYS)]
        self.columns = frozenset(
            (name, site)
            for name in self.file.names
            if name != _KEYS
            for site in (self.sites if self._has_sites(name) else (None,))
        )
        self._compared: set[Column] = set()

    def _has_sites(self, name: str) -> bool:
        return name.startswith(VECTORS) or len(self.file.shape(name)) == 2

    def read(self, name: str, site: str | None) -> np.ndarray:
        """Return a column: vectors (texts, width) or numbers (texts,), checked."""
        if site is None:
            return self.file.read(name)
        if name.startswith(VECTORS):
            return self.file.read_part(name, self.sites.index(site))
        return self.file.read(name)[self.sites.index(site)]

    def compare(self, columns: Iterable[Column]) -> None:
        """Compare columns, and the numbers of texts, with their checksums, unless that was done
        before."""
        numbers = (column for column in self.columns if column[1] is None)
        for column in {*columns, *numbers} - self._compared:
            self.read(*column)
            self._compared.add(column)


class MissingVectorsError(LayerscopeError):
    """Vectors or numbers that are not in the store."""


class VectorStore:
    """A folder of spaces, at most `size_limit` bytes large (None: no limit)."""

    def __init__(self, root: Path, size_limit: int | None = DEFAULT_SIZE) -> None:
        self.root = Path(root)
        self.size_limit = size_limit
        self._spaces: dict[str, VectorSpace] = {}

    def space(self, description: Mapping[str, Any]) -> VectorSpace:
        """Return the space of a description, made where there is none."""
        key = space_key(description)
        if key not in self._spaces:
            folder = self.root / key[:2] / key
            if not folder.resolve().is_relative_to(self.root.resolve()):
                raise RunFolderError(
                    f"{folder} leads out of the embedding store {self.root} through a link. Remove "
                    "the link."
                )
            file = folder / DESCRIPTION
            if not file.exists():
                atomic.write_text(file, json.dumps(description, indent=2))
            with contextlib.suppress(OSError):  # a disk that can only be read
                os.utime(file)
            self._spaces[key] = VectorSpace(folder)
        return self._spaces[key]

    def size(self) -> int:
        """Return the bytes on disk, all files counted."""
        return _bytes_in(self.root)

    def prune(self, keep_bytes: int) -> int:
        """Remove whole spaces, the least recently used first, until the store is `keep_bytes`
        small. Return the bytes that were removed."""
        files = self.root.glob(f"??/*/{DESCRIPTION}")
        excess = self.size() - keep_bytes
        removed = 0
        for file in sorted(files, key=lambda file: (file.stat().st_mtime, file)):
            if removed >= excess:
                break
            removed += _bytes_in(file.parent)
            shutil.rmtree(file.parent, ignore_errors=True)
            self._spaces.pop(file.parent.name, None)
        return removed

    def check_room(self, need: int) -> None:
        """Raise where `need` more bytes do not fit the limit."""
        if self.size_limit is None or (total := self.size()) + need <= self.size_limit:
            return
        raise RunFolderError(
            f"the embedding store {self.root} is full: {describe_size(need)} more are needed, its "
            f"limit is {describe_size(self.size_limit)}, and it holds {describe_size(total)}. "
            "Raise store_size=, evaluate fewer readouts or layers, or prune the store "
            "(`layerscope doctor --prune 2GB`). What is stored already is kept and will be reused."
        )


class VectorSpace:
    """Vectors and numbers of texts in a folder of shards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shards: list[StoredShard] = []
        self._read: set[str] = set()
        self._discarded: set[str] = set()
        self._listing = threading.Lock()
        # The place of each text, by the columns that its shard has: the shard's number and, in
        # 32 bits, the row.
        self._places: dict[frozenset[Column], dict[bytes, int]] = {}
        for path in atomic.parts_in(folder):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < time.time() - _ABANDONED_S:
                    path.unlink()
        self.refresh()

    @property
    def key(self) -> str:
        """Return the key of the space's description."""
        return self.folder.name

    def missing(
        self, keys: Sequence[bytes], readings: Sequence[str], sites: Sequence[str]
    ) -> np.ndarray:
        """Return, for each key, whether a vector of some reading at some site is missing.

        What is there is compared with its checksums. A damaged shard is discarded, so that its
        texts are encoded again.
        """
        self.refresh()
        columns: list[Column] = [(VECTORS + name, site) for name in readings for site in sites]
        is_there = np.zeros((len(columns), len(keys)), dtype=bool)
        for columns_of_shards, rows in self._places.items():
            indices = [i for i, column in enumerate(columns) if column in columns_of_shards]
            places = _look_up(rows, keys)
            for number in np.unique(places[places >= 0] >> 32):
                try:
                    with self._whole(self._shards[number]) as shard:
                        shard.compare(columns[i] for i in indices)
                except DamagedFileError:
                    return self.missing(keys, readings, sites)
            is_there[indices] |= places >= 0
        return np.asarray(~is_there.all(axis=0))

    def add(self, shard: Shard) -> None:
        """Store a shard: it is there when this returns. If this is interrupted, none of it is."""
        if shard.keys:
            name = f"{os.getpid()}-{secrets.token_hex(8)}{ARRAYS}"
            shard.write(self.folder / name)
            self._open_shard(name)

    def read(self, keys: Sequence[bytes], reading: str, site: str) -> np.ndarray:
        """Return the vectors (texts, width) of a reading at a site."""
        return self._gather(keys, (VECTORS + reading, site))

    def read_numbers(self, keys: Sequence[bytes], name: str, site: str | None = None) -> np.ndarray:
        """Return a number of each text (texts,), at a site where there is one for each."""
        return self._gather(keys, (NUMBERS + name, site))

    def refresh(self) -> None:
        """Read the shards that came since, and forget those that went."""
        with self._listing:
            shards = {path.name for path in self.folder.glob(f"*{ARRAYS}")} - self._discarded
            if self._read - shards:
                self._shards.clear()
                self._places.clear()
                self._read.clear()
            for name in sorted(shards - self._read):
                self._open_shard(name)

    def _open_shard(self, name: str) -> None:
        self._read.add(name)
        with contextlib.suppress(DamagedFileError), self._whole(self.folder / name):
            shard = StoredShard(self.folder / name)
            offset = len(self._shards) << 32
            self._shards.append(shard)
            places = self._places.setdefault(shard.columns, {})
            places.update(zip(shard.keys, itertools.count(offset)))

    @contextmanager
    def _whole(self, shard: Any) -> Iterator[Any]:
        """Discard a shard, or its file, that turns out to be damaged in the block, and raise."""
        path = shard if isinstance(shard, Path) else shard.file.path
        try:
            yield shard
        except DamagedFileError as error:
            log.warning(
                "embedding store: %s is damaged (%s): it is discarded, its texts are encoded again",
                path.name,
                error.reason,
            )
            self._discarded.add(path.name)
            with contextlib.suppress(OSError):  # in a store that can only be read it is ignored
                path.unlink(missing_ok=True)
            raise
        except OSError as error:
            advice = os_advice(error) or f"it was removed while in use ({error})."
            raise RunFolderError(
                f"a part of the embedding store cannot be read: {advice} Run the same command "
                "again: what is missing will be encoded again."
            ) from error

    def _locate(self, keys: Sequence[bytes], column: Column) -> np.ndarray:
        """Return the place of a column of each text; −1 where there is none."""
        places = np.full(len(keys), -1)
        for columns, rows in self._places.items():
            if column in columns:
                places = np.maximum(places, _look_up(rows, keys))
        return places

    def _gather(self, keys: Sequence[bytes], column: Column) -> np.ndarray:
        """Return a column of texts, in their order."""
        places = self._locate(keys, column)
        if (places < 0).any():
            self.refresh()
            places = self._locate(keys, column)
        missing = np.flatnonzero(places < 0)
        if len(missing):
            name, site = column
            place = "" if site is None else f" at {site!r}"
            raise MissingVectorsError(
                f"the embedding store has no {name!r}{place} for {len(missing)} of {len(keys)} "
                f"texts (first: text number {missing[0]}) in {self.folder}. Encode them first."
            )
        gathered = np.empty((0, 0))
        order = np.argsort(places)
        ends = np.flatnonzero(np.diff(places[order] >> 32)) + 1
        for texts in np.split(order, ends) if len(keys) else ():
            try:
                with self._whole(self._shards[places[texts[0]] >> 32]) as shard:
                    values = shard.read(*column)
            except DamagedFileError as error:
                self.refresh()
                raise MissingVectorsError(
                    f"a part of the embedding store in {self.folder} was damaged ({error.reason}) "
                    "and has been discarded. Run the same command again: its texts are encoded "
                    "again."
                ) from error
            if not len(gathered):
                gathered = np.empty((len(keys), *values.shape[1:]), dtype=values.dtype)
            gathered[texts] = values[places[texts] & 0xFFFFFFFF]
        return gathered


def _look_up(rows: Mapping[bytes, int], keys: Sequence[bytes]) -> np.ndarray:
    """Return the row of each key, −1 where there is none, without a loop of Python's."""
    places = map(rows.get, keys, itertools.repeat(-1))
    return np.fromiter(places, np.int64, len(keys))


def _bytes_in(folder: Path) -> int:
    """Return the bytes of all files under a folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # another process has just renamed or removed it
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def space_key(description: Mapping[str, Any]) -> str:
    """Return the key of a description; descriptions that differ in anything have different
    keys."""
    whole = {"format": _FORMAT, "description": description}
    # Not ASCII: its escapes would spell some pairs of surrogates like one character.
    text = json.dumps(
        whole, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
