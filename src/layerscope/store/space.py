"""One space of an embedding store: one model's vectors under one set of circumstances."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import math
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
    INDEX,
    KEY_BYTES,
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

_FORMAT = 1
_LEFTOVER_S = 3600.0  # a younger file may be another process's chunk in the making


class MissingVectorsError(LayerscopeError, KeyError):
    """Vectors or numbers that are not in the store."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show its repr


class Space:
    """Vectors and numbers of texts; made by `EmbeddingStore.space`. Several processes may read and
    write one at once."""

    def __init__(
        self,
        folder: Path,
        key: str,
        description: dict[str, Any],
        make_room: Callable[[int, Space], None],
        grew: Callable[[int], None],
    ) -> None:
        """`make_room(need, space)` raises where so many bytes do not fit the store's limit;
        `grew(count)` is told what was written."""
        self.folder, self.key, self.description = folder, key, description
        self._make_room, self._grew = make_room, grew
        self.dtype: str = description["storage_dtype"]
        self._index, self._known = ChunkIndex(), set[str]()
        self._checked: set[tuple[str, str, str | None]] = (
            set()
        )  # (chunk, kind, site) whose checksums were compared
        self._damaged: set[str] = set()
        self._counter = itertools.count()
        self.open()
        remove_leftovers(self.folder, self._known)

    @property
    def texts(self) -> int:
        """How many distinct texts have something here."""
        return self._index.texts()

    @property
    def bytes(self) -> int:
        """Bytes on disk."""
        return bytes_in(self.folder)

    def open(self) -> None:
        """See that the folder exists and is this space's, and note the use."""
        path = self.folder / DESCRIPTION
        if not path.exists():
            self.close()
            content = json.dumps(
                {"format": _FORMAT, "description": self.description},
                indent=2,
                ensure_ascii=False,
            )
            raw = content.encode("utf-8", "surrogatepass")
            atomic.write(path, lambda stream: stream.write(raw))
            self._grew(len(raw))
        description = describe(self.folder)
        if description is None or space_key(description) != self.key:
            raise RunFolderError(
                f"{path} does not describe what its folder's name stands for: it is damaged or was edited. "
                f"Remove {self.folder}; its embeddings will be computed again."
            )
        self.refresh()
        self._touch()

    def close(self) -> None:
        """Forget what is known of the folder, which was or will be removed."""
        self._index, self._known = ChunkIndex(), set()

    def check_room(self, texts: int, kinds: int, sites: int, width: int) -> None:
        """Raise, before any work, where the vectors of so many texts do not fit the store's
        limit."""
        self._make_room(texts * kinds * sites * width * np.dtype(self.dtype).itemsize, self)

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
        if self._known - names:
            self.close()
        for name in sorted(names - self._known - self._damaged):
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
        self._use(keys)
        columns: list[Column] = [("vector", kind, site) for kind in kinds for site in sites]
        columns += [("number", name, None) for name in numbers]
        damaged = False
        for chunk in [self._index.chunks[i] for i in self._index.serving(keys, columns)]:
            held = itertools.product(
                (k for k in kinds if k in chunk.kinds), (s for s in sites if s in chunk.sites)
            )
            try:
                for kind, site in [*held, ("", None)]:
                    if (chunk.name, kind, site) not in self._checked:
                        self._read(chunk, kind, site)
            except ValueError as error:
                self._discard(chunk, error)
                damaged = True
        if damaged:
            self.close()
            self.refresh()
        return self._index.holds(keys, columns)

    def _read(self, chunk: Chunk, kind: str, site: str | None) -> Any:
        """One site's vectors of a chunk, or with no kind its numbers; compared with their checksums
        unless they were before."""
        place = (chunk.name, kind, site)
        check = place not in self._checked
        try:
            found = (
                chunk.read(self.folder, kind, site, check)
                if site is not None
                else chunk.read_numbers(self.folder, check)
            )
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
        for name in (
            chunk.name + INDEX,
            *chunk.files,
        ):  # the index first: without it there is no chunk
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
        _check(keys, arrays, sites, per_text)
        if not keys:
            return
        # Rather too much than too little for headers, padding and the index, whose keys are written
        # as hexadecimal.
        need = 2 * KEY_BYTES * len(keys) + 64 * len(sites) + 4096
        need += sum(array.size * np.dtype(self.dtype).itemsize + 256 for array in arrays.values())
        need += sum(array.nbytes + 256 for array in per_text.values())
        self._make_room(need, self)
        self.open()
        name = f"{os.getpid()}-{next(self._counter):06d}-{secrets.token_hex(6)}"
        chunk, written = write_chunk(
            self.folder, name, keys, list(sites), arrays, per_text, self.dtype
        )
        self._known.add(name)
        self._index.add(chunk, keys)
        self._grew(written)

    def read(self, keys: Sequence[Key], kind: str, site: str) -> np.ndarray:
        """The vectors (texts, D) of one kind at one site, as float32, in the order asked for."""
        parts = [
            (
                at,
                found if len(rows) == len(found) else found[rows],
            )  # all of a chunk, in its order, is not copied twice
            for at, found, rows in self._found(keys, ("vector", kind, site))
        ]
        widths = sorted({values.shape[1] for _, values in parts})
        if len(widths) > 1:
            raise RunFolderError(
                f"{self.folder} holds {kind!r} vectors at {site!r} of {widths[0]} and of {widths[1]} dimensions: "
                "two different models under one description. Remove this folder and let the description tell them apart."
            )
        return _assembled(
            parts,
            np.empty((len(keys), *widths), dtype=np.float32)
            if widths
            else np.empty((0, 0), np.float32),
        )

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
        self._use(keys)
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
                found = (
                    self._read(chunk, name, site)
                    if sort == "vector"
                    else self._read(chunk, "", None)[name]
                )
            except ValueError as error:
                self._discard(chunk, error)
                self.close()
                self.refresh()
                raise MissingVectorsError(
                    f"a part of the embedding store in {self.folder} was damaged ({error}) and has been discarded. "
                    "Run the same command again: its texts are encoded again."
                ) from error
            per_site = sort == "number" and site is not None
            yield at, found[chunk.sites.index(str(site))] if per_site else found, row[at]

    def _use(self, keys: Sequence[Key]) -> None:
        """Note the use; a folder that was pruned is not made again."""
        _check_keys(keys)
        self._touch()

    def _touch(self) -> None:
        with contextlib.suppress(OSError):  # gone, or on a disk that can only be read
            (self.folder / USED).touch()


def remove_leftovers(folder: Path, known: set[str]) -> None:
    """Remove what a killed writer left in a space: files of no known chunk, old enough to be
    nobody's work in progress."""
    before = time.time() - _LEFTOVER_S
    for entry in os.scandir(folder):
        data = entry.name.endswith((".npy", ".numbers")) and entry.name.split(".")[0] not in known
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
    """The key of a description; descriptions that differ in anything have different keys."""
    _check_plain(description, "description")
    whole = {"format": _FORMAT, "description": description}
    # Not ASCII: its escapes would spell some pairs of surrogates like one character.
    text = json.dumps(
        whole, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def describe(folder: Path) -> dict[str, Any] | None:
    """What a space's folder says that it holds; None where that cannot be read."""
    try:
        description = json.loads(
            (folder / DESCRIPTION).read_bytes().decode("utf-8", "surrogatepass")
        )["description"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return description if isinstance(description, dict) else None


def _check_plain(value: Any, where: str) -> None:
    """Refuse what JSON would write like something else: {1: …} like {"1": …}, or anything through
    its str()."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}: keys must be text")
            _check_plain(inner, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            _check_plain(inner, f"{where}[{i}]")
    elif not (
        value is None
        or isinstance(value, (str, int, bool))
        or (isinstance(value, float) and math.isfinite(value))
    ):
        raise TypeError(
            f"{where} is {value!r}, which is not plain JSON: give text, finite numbers, lists and dicts only"
        )


def _check_keys(keys: Sequence[Key]) -> None:
    if not set(map(len, keys)) <= {KEY_BYTES}:
        raise ValueError(f"a text key has {KEY_BYTES} bytes: see text_key")


def _assembled(parts: Sequence[tuple[np.ndarray, np.ndarray]], out: np.ndarray) -> np.ndarray:
    for at, values in parts:
        out[at] = values
    return out


def _check(
    keys: Sequence[Key],
    vectors: Mapping[str, np.ndarray],
    sites: Sequence[str],
    numbers: Mapping[str, np.ndarray],
) -> None:
    _check_keys(keys)
    texts = len(keys)
    if not sites or len(set(sites)) != len(sites):
        raise ValueError(f"sites must be given, each once, not {list(sites)}")
    if not vectors and not numbers:
        raise ValueError("nothing to store: give vectors, numbers or both")
    for kind, array in vectors.items():
        if (
            array.ndim != 3
            or array.shape[:2] != (len(sites), texts)
            or not array.shape[2]
            or array.dtype.kind != "f"
        ):
            wanted = f"({len(sites)} sites, {texts} texts, D)"
            raise ValueError(
                f"vectors {kind!r} must be floats of shape {wanted}, not {array.dtype} {array.shape}"
            )
    for name, array in numbers.items():
        if array.shape not in ((texts,), (len(sites), texts)) or array.dtype.kind not in "biuf":
            wanted = f"({texts} texts,) or ({len(sites)} sites, {texts} texts)"
            raise ValueError(
                f"numbers {name!r} must be numbers of shape {wanted}, not {array.dtype} {array.shape}"
            )
