"""One space of an embedding store: one model's vectors under one set of circumstances."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.errors import LayerscopeError, RunFolderError, os_advice
from layerscope.store import atomic
from layerscope.store.chunks import (
    DATA,
    INDEX,
    Chunk,
    ChunkIndex,
    Column,
    Key,
    read_chunk,
    write_chunk,
)

log = logging.getLogger("layerscope")

DESCRIPTION = "space.json"
USED = "used"
"""The file of a space whose modification time says when the space was last used."""

_FORMAT = 2
_LEFTOVER_S = 3600.0  # a younger file may be another process's chunk in the making


class MissingVectorsError(LayerscopeError):
    """Vectors or numbers that are not in the store."""


class Space:
    """Vectors and numbers of texts; made by `EmbeddingStore.space`. Several processes may read and
    write one at once."""

    def __init__(
        self, folder: Path, description: dict[str, Any], check_room: Callable[[int], None]
    ) -> None:
        """`check_room(need)` raises where so many bytes do not fit the store's limit."""
        self.folder, self._check_room = folder, check_room
        self.key = folder.name
        self.dtype: str = description["storage_dtype"]
        self._index, self._known = ChunkIndex(), set[str]()
        self._checked: set[tuple[str, str, str | None]] = (
            set()
        )  # (chunk, kind, site) whose checksums were compared
        self._damaged: set[str] = set()
        self._counter = itertools.count()
        if not (folder / DESCRIPTION).exists():
            atomic.write_text(folder / DESCRIPTION, json.dumps(description, indent=2))
        self._touch()
        self.refresh()
        remove_leftovers(self.folder, self._known)

    @property
    def texts(self) -> int:
        """How many distinct texts have something here."""
        return self._index.texts()

    def check_room(self, texts: int, kinds: int, sites: int, width: int) -> None:
        """Raise, before any work, where the vectors of so many texts do not fit the store's
        limit."""
        self._check_room(texts * kinds * sites * width * np.dtype(self.dtype).itemsize)

    def refresh(self) -> None:
        """See what other processes have added (or removed) since."""
        try:
            names = {
                entry.name[: -len(INDEX)]
                for entry in os.scandir(self.folder)
                if entry.name.endswith(INDEX)
            }
        except FileNotFoundError:
            names = set()
        names -= self._damaged
        if self._known - names:  # the space was pruned, or a chunk was damaged
            self._index, self._known = ChunkIndex(), set()
        for name in sorted(names - self._known):
            self._known.add(name)  # a damaged chunk, too: one warning is enough
            try:
                self._index.add(*read_chunk(self.folder, name))
            except ValueError as error:
                index = self.folder / (name + INDEX)
                if index.exists():
                    log.warning(
                        "embedding store: %s is damaged and ignored, its texts will be encoded again (%s)",
                        index,
                        error,
                    )

    def has(
        self,
        keys: Sequence[Key],
        kinds: Sequence[str],
        sites: Sequence[str],
        numbers: Sequence[str] = (),
    ) -> np.ndarray:
        """Per text, whether every kind is there at every site, and every one of `numbers` (one per
        text).

        What is there is compared with its checksums. A damaged chunk is discarded, so that its
        texts are encoded again.
        """
        self._touch()
        columns: list[Column] = [("vector", kind, site) for kind in kinds for site in sites]
        columns += [("number", name, None) for name in numbers]
        damaged = False
        for chunk in [self._index.chunks[i] for i in self._index.serving(keys, columns)]:
            held: list[tuple[str, str | None]] = [(name, None) for name in chunk.numbers]
            held += [(k, s) for k in kinds if k in chunk.kinds for s in sites if s in chunk.sites]
            try:
                for name, site in held:
                    if (chunk.name, name, site) not in self._checked:
                        self._read(chunk, name, site)
            except ValueError as error:
                self._discard(chunk, error)
                damaged = True
        if damaged:
            self.refresh()
        return self._index.holds(keys, columns)

    def _read(self, chunk: Chunk, name: str, site: str | None) -> np.ndarray:
        """One site's vectors of a chunk, or without a site a number; compared with their checksums
        unless they were before."""
        place = (chunk.name, name, site)
        try:
            found = chunk.read(self.folder, name, site, check=place not in self._checked)
        except OSError as error:
            raise RunFolderError(
                f"a part of the embedding store cannot be read: {os_advice(error) or f'it was removed while in use ({error}).'} "
                "Run the same command again: what is missing will be encoded again."
            ) from error
        self._checked.add(place)
        return found

    def _discard(self, chunk: Chunk, error: Exception) -> None:
        log.warning(
            "embedding store: %s is damaged (%s): it is discarded, its texts are encoded again",
            chunk.name,
            error,
        )
        self._damaged.add(chunk.name)
        for name in (chunk.name + INDEX, chunk.name + DATA):  # without an index there is no chunk
            with contextlib.suppress(
                OSError
            ):  # a store that can only be read: the chunk is ignored
                (self.folder / name).unlink(missing_ok=True)

    def add(
        self,
        keys: Sequence[Key],
        vectors: Mapping[str, np.ndarray],
        sites: Sequence[str],
        numbers: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Store one chunk: vectors[kind] is (sites, texts, D), numbers[name] is (texts,) or (sites,
        texts).

        The whole chunk is there when this returns; where it is interrupted, none of it is.
        """
        arrays = {kind: np.asarray(array) for kind, array in vectors.items()}
        per_text = {name: np.asarray(array) for name, array in (numbers or {}).items()}
        if not keys:
            return
        self._touch()
        name = f"{os.getpid()}-{next(self._counter):06d}-{secrets.token_hex(6)}"
        chunk = write_chunk(self.folder, name, keys, list(sites), arrays, per_text, self.dtype)
        self._known.add(name)
        self._index.add(chunk, keys)

    def read(self, keys: Sequence[Key], kind: str, site: str) -> np.ndarray:
        """The vectors (texts, D) of one kind at one site, as float32, in the order asked for."""
        parts = [
            (
                at,
                found if len(rows) == len(found) else found[rows],
            )  # all of a chunk, in its order, is not copied twice
            for at, found, rows in self._found(keys, ("vector", kind, site))
        ]
        width = parts[0][1].shape[1] if parts else 0
        return _assembled(parts, np.empty((len(keys), width), dtype=np.float32))

    def read_numbers(self, keys: Sequence[Key], name: str, site: str | None = None) -> np.ndarray:
        """A number of each text (texts,), at a site where there is one per site."""
        parts = [(at, found[rows]) for at, found, rows in self._found(keys, ("number", name, site))]
        kind = np.result_type(*(values.dtype for _, values in parts)) if parts else np.float64
        return _assembled(parts, np.empty(len(keys), dtype=kind))

    def _found(
        self, keys: Sequence[Key], column: Column
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Chunk by chunk: which of the texts asked for it serves, its part of the column, and their
        rows in that, ascending."""
        self._touch()
        sort, name, site = column
        numbers, row = self._index.locate(keys, column)
        missing = np.flatnonzero(numbers < 0)
        if len(missing):
            what = f"{sort} {name!r}" + (f" at {site!r}" if site is not None else "")
            raise MissingVectorsError(
                f"the embedding store has no {what} for {len(missing)} of {len(keys)} texts (first: text number {missing[0]}) in "
                f"{self.folder}. Encode them first; refresh() shows what other processes have added."
            )
        order = np.lexsort((row, numbers))
        for at in (
            np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1) if len(order) else ()
        ):
            chunk = self._index.chunks[int(numbers[at[0]])]
            try:
                found = self._read(chunk, name, site if sort == "vector" else None)
            except ValueError as error:
                self._discard(chunk, error)
                self.refresh()
                raise MissingVectorsError(
                    f"a part of the embedding store in {self.folder} was damaged ({error}) and has been discarded. "
                    "Run the same command again: its texts are encoded again."
                ) from error
            per_site = found.ndim == 2 and sort == "number"
            yield at, found[chunk.sites.index(str(site))] if per_site else found, row[at]

    def _touch(self) -> None:
        """Note the use."""
        with contextlib.suppress(OSError):  # a disk that can only be read
            (self.folder / USED).touch()


def remove_leftovers(folder: Path, known: set[str]) -> None:
    """Remove what a killed writer left in a space: files of no known chunk, old enough to be
    nobody's work in progress."""
    before = time.time() - _LEFTOVER_S
    for entry in os.scandir(folder):
        data = entry.name.endswith(DATA) and entry.name.removesuffix(DATA) not in known
        with contextlib.suppress(OSError):
            if (data or entry.name.endswith(atomic.PART)) and entry.stat().st_mtime < before:
                os.unlink(entry.path)


def bytes_in(folder: Path) -> int:
    """Return the bytes of all files under a folder."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # another process has just renamed or removed it
                total += os.lstat(os.path.join(at, name)).st_size
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


def _assembled(parts: Sequence[tuple[np.ndarray, np.ndarray]], out: np.ndarray) -> np.ndarray:
    for at, values in parts:
        out[at] = values
    return out
