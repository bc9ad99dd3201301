"""The vector store: each text is encoded once, and later tasks, layers, readouts and runs read its
vectors back.

A store is a folder of spaces. A space holds what one model yields under one set of circumstances
(weights, revision, template, length): two descriptions that differ in anything are two
spaces. A space is a folder of shards. Which shards there are is its listing; which texts they hold
is read from the shards. Several processes may read and write a space at once, and may be killed at
any time. Nobody prunes while another process works.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.core.formatting import describe_size
from layerscope.errors import LayerscopeError, RunFolderError, os_advice
from layerscope.store import atomic
from layerscope.store.checked import ARRAYS, DamagedFileError
from layerscope.vectors.shard import NUMBERS, VECTORS, Column, Shard, StoredShard

__all__ = [
    "DEFAULT_SIZE",
    "MissingVectorsError",
    "VectorSpace",
    "VectorStore",
]

DEFAULT_SIZE = 10 * 2**30
DESCRIPTION = "space.json"
"""The file that describes a space. Its modification time is when the space was last opened."""

_FORMAT = 3
_ABANDONED_S = 3600.0  # a younger temporary file may be another process's shard in the making

log = logging.getLogger("layerscope")


class MissingVectorsError(LayerscopeError):
    """Vectors or numbers that are not in the store."""


@dataclass(frozen=True)
class SpaceInfo:
    """One space of a store, as it is pruned. `last_used` is in seconds since 1970."""

    key: str
    bytes: int
    last_used: float


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
            self._spaces[key] = VectorSpace(self, key, description)
        return self._spaces[key]

    def size(self) -> int:
        """Return the bytes on disk, all files counted."""
        return bytes_in(self.root)

    def spaces(self) -> list[SpaceInfo]:
        """Return all spaces, least recently used first."""
        infos = [
            SpaceInfo(file.parent.name, bytes_in(file.parent), file.stat().st_mtime)
            for file in self.root.glob(f"??/*/{DESCRIPTION}")
        ]
        return sorted(infos, key=lambda info: (info.last_used, info.key))

    def prune(self, keep_bytes: int) -> list[SpaceInfo]:
        """Remove whole spaces, the least recently used first, until the store is `keep_bytes`
        small. Return those that were removed."""
        excess = self.size() - keep_bytes
        removed = []
        for info in self.spaces():
            if excess <= 0:
                break
            shutil.rmtree(self.folder(info.key), ignore_errors=True)
            self._spaces.pop(info.key, None)
            removed.append(info)
            excess -= info.bytes
        return removed

    def folder(self, key: str) -> Path:
        """Return the folder of a space."""
        return self.root / key[:2] / key

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
    """Vectors and numbers of texts; made by `VectorStore.space`."""

    def __init__(self, store: VectorStore, key: str, description: Mapping[str, Any]) -> None:
        self.store = store
        self.key = key
        self.folder = store.folder(key)
        self._shards: list[StoredShard] = []
        self._read: set[str] = set()
        self._discarded: set[str] = set()
        self._listing = threading.Lock()
        # The place of each text, by the columns that its shard has: the shard's number and, in
        # 32 bits, the row.
        self._places: dict[frozenset[Column], dict[bytes, int]] = {}
        self._refuse_link()
        file = self.folder / DESCRIPTION
        if not file.exists():
            atomic.write_text(file, json.dumps(description, indent=2))
        with contextlib.suppress(OSError):  # a disk that can only be read
            os.utime(file)
        self._remove_abandoned()
        self.refresh()

    @property
    def texts(self) -> int:
        """The number of distinct texts of which there is something."""
        return len(set().union(*self._places.values()))

    def missing(
        self,
        keys: Sequence[bytes],
        readings: Sequence[str],
        sites: Sequence[str],
        numbers: Sequence[str] = (),
    ) -> np.ndarray:
        """Return, for each key, whether a vector of some reading at some site is missing, or one of
        the numbers that a text has once.

        What is there is compared with its checksums. A damaged shard is discarded, so that its
        texts are encoded again.
        """
        self.refresh()
        columns: list[Column] = [(VECTORS + name, site) for name in readings for site in sites]
        columns += [(NUMBERS + name, None) for name in numbers]
        # Columns that lie in the same shards: one of them says where.
        alike: dict[tuple[bool, ...], list[Column]] = {}
        for column in columns:
            alike.setdefault(tuple(column in held for held in self._places), []).append(column)
        lacking = np.zeros(len(keys), dtype=bool)
        for group in alike.values():
            places = self._locate(keys, group[0])
            lacking |= places < 0
            for number in np.unique(places[places >= 0] >> 32):
                if not self._is_whole(self._shards[number], group):
                    return self.missing(keys, readings, sites, numbers)
        return lacking

    def add(self, shard: Shard) -> None:
        """Store a shard: it is there when this returns. Where this is interrupted, none of it is."""
        if shard.keys:
            name = f"{os.getpid()}-{secrets.token_hex(8)}{ARRAYS}"
            shard.write(self.folder / name)
            self._open_shard(name)

    def read(self, keys: Sequence[bytes], reading: str, site: str) -> np.ndarray:
        """Return the vectors (texts, width) of a reading at a site, as float32."""
        return self._gather(keys, (VECTORS + reading, site))

    def read_numbers(self, keys: Sequence[bytes], name: str, site: str | None = None) -> np.ndarray:
        """Return a number of each text (texts,), at a site where there is one for each."""
        return self._gather(keys, (NUMBERS + name, site))

    def refresh(self) -> None:
        """Read the shards that came since, and forget those that went."""
        with self._listing:
            try:
                listing = {entry.name for entry in os.scandir(self.folder)}
            except FileNotFoundError:
                listing = set()
            shards = {name for name in listing if name.endswith(ARRAYS)} - self._discarded
            if self._read - shards:
                self._shards.clear()
                self._places.clear()
                self._read.clear()
            for name in sorted(shards - self._read):
                self._open_shard(name)

    def _open_shard(self, name: str) -> None:
        path = self.folder / name
        self._read.add(name)
        try:
            shard = StoredShard(path)
        except DamagedFileError as error:
            self._discard(path, error)
            return
        except FileNotFoundError:  # removed a moment ago
            return
        except OSError as error:
            raise _unreadable(error) from error
        first = len(self._shards) << 32
        self._shards.append(shard)
        places = self._places.setdefault(shard.columns, {})
        places.update(zip(shard.keys, itertools.count(first)))

    def _is_whole(self, shard: StoredShard, columns: Sequence[Column]) -> bool:
        """Compare columns of a shard with their checksums; discard the shard if one differs."""
        try:
            shard.compare(columns)
        except OSError as error:
            raise _unreadable(error) from error
        except DamagedFileError as error:
            self._discard(shard.file.path, error)
            self.refresh()
            return False
        return True

    def _discard(self, path: Path, error: DamagedFileError) -> None:
        log.warning(
            "embedding store: %s is damaged (%s): it is discarded, its texts are encoded again",
            path.name,
            error.reason,
        )
        self._discarded.add(path.name)
        with contextlib.suppress(OSError):  # a store that can only be read: the shard is ignored
            path.unlink(missing_ok=True)

    def _locate(self, keys: Sequence[bytes], column: Column) -> np.ndarray:
        """Return the place of a column of each text; −1 where there is none."""
        places = np.full(len(keys), -1)
        for columns, rows in self._places.items():
            if column in columns:  # looked up without a loop of Python's
                located = map(rows.get, keys, itertools.repeat(-1))
                places = np.maximum(places, np.fromiter(located, np.int64, len(keys)))
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
        if not len(keys):
            return np.empty((0, 0))
        shards = places >> 32
        rows = places & 0xFFFFFFFF
        order = np.lexsort((rows, shards))
        gathered: np.ndarray | None = None
        for at in np.split(order, np.flatnonzero(np.diff(shards[order])) + 1):
            shard = self._shards[int(shards[at[0]])]
            try:
                values = shard.read(*column)
            except OSError as error:
                raise _unreadable(error) from error
            except DamagedFileError as error:
                self._discard(shard.file.path, error)
                self.refresh()
                raise MissingVectorsError(
                    f"a part of the embedding store in {self.folder} was damaged ({error.reason}) "
                    "and has been discarded. Run the same command again: its texts are encoded "
                    "again."
                ) from error
            if gathered is None:
                gathered = np.empty((len(keys), *values.shape[1:]), dtype=values.dtype)
            gathered[at] = values[rows[at]]
        assert gathered is not None
        return gathered

    def _refuse_link(self) -> None:
        """Raise where the folder of the space is reached through a link that leads elsewhere."""
        root = self.store.root
        if not self.folder.resolve().is_relative_to(root.resolve()):
            raise RunFolderError(
                f"{self.folder} leads out of the embedding store {root} through a link. Remove "
                "the link."
            )

    def _remove_abandoned(self) -> None:
        """Remove what a killed writer left, old enough to be nobody's work in progress."""
        before = time.time() - _ABANDONED_S
        for path in atomic.parts_in(self.folder):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < before:
                    path.unlink()


def bytes_in(folder: Path) -> int:
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


def _unreadable(error: OSError) -> RunFolderError:
    advice = os_advice(error) or f"it was removed while in use ({error})."
    return RunFolderError(
        f"a part of the embedding store cannot be read: {advice} Run the same command again: what "
        "is missing will be encoded again."
    )
