"""One space of an embedding store: one model's vectors under one set of circumstances."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import logging
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from layerscope.errors import LayerscopeError, RunFolderError
from layerscope.store import atomic
from layerscope.store.chunks import INDEX, Chunk, ChunkIndex, Column, Key, as_keys, read_chunk, write_chunk
from layerscope.store.locks import USED, Hold, bytes_in

try:
    import resource
except ImportError:  # not on Windows, where a map takes none of the files that a process may open
    resource = None  # type: ignore[assignment]

log = logging.getLogger("layerscope")

DESCRIPTION = "space.json"
_FORMAT = 1
_LEFTOVER_S = 3600.0  # a younger file may be another process's chunk in the making
_MAPS = 16384  # Linux allows a process some 65,000 maps


class MissingVectorsError(LayerscopeError, KeyError):
    """Vectors or numbers that are not in the store."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show its repr


class Shelf(Protocol):
    """What a space asks of the store that it belongs to: where it lies, and room for what is written."""

    def folder(self, key: str) -> Path:
        """Where a space lies."""

    def make_room(self, need: int, current: Space) -> None:
        """See that `need` more bytes fit the budget."""

    def grew(self, count: int) -> None:
        """Note that bytes were written."""


class Space:
    """Vectors and numbers of texts; made by `EmbeddingStore.space`. Several processes may read and write one at once."""

    def __init__(self, store: Shelf, key: str, description: dict[str, Any]) -> None:
        self.store, self.key, self.description = store, key, description
        self.dtype: str = description["storage_dtype"]
        self.folder = store.folder(key)
        self._index, self._known = ChunkIndex(), set[str]()
        self._maps: dict[tuple[int, str | None], Any] = {}
        self._checked: set[tuple[str, str, str | None]] = set()  # (chunk, kind, site) whose checksums were compared
        self._damaged: set[str] = set()
        self._hold: Hold | None = None
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
        """See that the folder exists, is this space's and stays while it is in use; note the use."""
        path = self.folder / DESCRIPTION
        if self._hold is None or not path.exists():
            self.close()
            self._hold = Hold(self.folder)
            if not path.exists():
                content = json.dumps({"format": _FORMAT, "description": self.description}, indent=2, ensure_ascii=False)
                raw = content.encode("utf-8", "surrogatepass")
                atomic.write(path, lambda stream: stream.write(raw))
                self.store.grew(len(raw))
            description = describe(self.folder)
            if description is None or space_key(description) != self.key:
                raise RunFolderError(
                    f"{path} does not describe what its folder's name stands for: it is damaged or was edited. "
                    f"Remove {self.folder}; its embeddings will be computed again."
                )
            self.refresh()
        self._touch()

    def close(self) -> None:
        """Let go of the folder, so that others may remove it; it is opened again when it is next used."""
        self._clear()
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    def refresh(self) -> None:
        """See what other processes have added (or removed) since."""
        try:
            names = {entry.name[: -len(INDEX)] for entry in os.scandir(self.folder) if entry.name.endswith(INDEX)}
        except FileNotFoundError:
            names = set()
        if self._known - names:
            self._clear()
        for name in sorted(names - self._known - self._damaged):
            self._known.add(name)  # a damaged chunk, too: one warning is enough
            try:
                self._index.add(*read_chunk(self.folder, name))
            except ValueError as error:
                index = self.folder / (name + INDEX)
                if index.exists():
                    log.warning("embedding store: %s is damaged and ignored, its texts will be encoded again (%s)", index, error)

    def has(self, keys: Sequence[Key], kinds: Sequence[str], sites: Sequence[str], numbers: Sequence[str] = ()) -> np.ndarray:
        """Per text, whether every kind is there at every site, and every one of `numbers`.

        What is there is compared with its checksums. A damaged chunk is discarded, so that its texts are encoded again.
        """
        self._use()
        columns: list[Column] = [("vector", kind, site) for kind in kinds for site in sites]
        for name in numbers:
            flat: Column = ("number", name, None)
            columns += [flat] if self._index.knows(flat) else [("number", name, site) for site in sites]
        wanted, damaged = as_keys(keys), False
        for i in self._index.serving(wanted, columns):
            chunk = self._index.chunks[i]
            try:
                for kind in kinds:
                    for site in (site for site in sites if site in chunk.sites):
                        self._check(chunk, kind, site)
                self._check(chunk, "", None)
            except ValueError as error:
                self._discard(chunk, error)
                damaged = True
        if damaged:
            self._clear()
            self.refresh()
        return self._index.holds(wanted, columns)

    def _check(self, chunk: Chunk, kind: str, site: str | None) -> None:
        """Compare one site's vectors of a chunk, or with no kind its numbers, with their checksums, unless they were before."""
        place = (chunk.name, kind, site)
        if place not in self._checked:
            try:
                chunk.check(self.folder, kind, site)
            except OSError as error:
                raise _unreadable(error) from error
            self._checked.add(place)

    def _discard(self, chunk: Chunk, error: Exception) -> None:
        log.warning("embedding store: %s is damaged (%s): it is discarded, its texts are encoded again", chunk.name, error)
        self._damaged.add(chunk.name)
        for name in (chunk.name + INDEX, *chunk.files):  # the index first: without it there is no chunk
            with contextlib.suppress(OSError):  # a store that can only be read: the chunk is ignored
                (self.folder / name).unlink(missing_ok=True)

    def _trust(self, chunk: Chunk, kind: str, site: str | None) -> None:
        """Refuse what is about to be read where it is damaged."""
        try:
            self._check(chunk, kind, site)
        except ValueError as error:
            self._discard(chunk, error)
            self._clear()
            self.refresh()
            raise MissingVectorsError(
                f"a part of the embedding store in {self.folder} was damaged ({error}) and has been discarded. "
                "Run the same command again: its texts are encoded again."
            ) from error

    def add(
        self,
        keys: Sequence[Key],
        vectors: Mapping[str, np.ndarray],
        sites: Sequence[str],
        numbers: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Store one chunk: vectors[kind] is (sites, texts, D), numbers[name] is (texts,) or (sites, texts).

        The whole chunk is there when this returns; where it is interrupted, none of it is.
        """
        arrays = {kind: np.asarray(array) for kind, array in vectors.items()}
        per_text = {name: np.asarray(array) for name, array in (numbers or {}).items()}
        wanted = as_keys(keys)
        _check(len(wanted), arrays, sites, per_text)
        if not len(wanted):
            return
        # Rather too much than too little for headers, padding and the index, whose keys are written as hexadecimal.
        need = 2 * wanted.nbytes + 64 * len(sites) + 4096
        need += sum(array.size * np.dtype(self.dtype).itemsize + 256 for array in arrays.values())
        need += sum(array.nbytes + 256 for array in per_text.values())
        self.store.make_room(need, self)
        self.open()
        name = f"{os.getpid()}-{next(self._counter):06d}-{secrets.token_hex(6)}"
        chunk, written = write_chunk(self.folder, name, wanted, list(sites), arrays, per_text, self.dtype)
        self._known.add(name)
        self._index.add(chunk, wanted)
        self.store.grew(written)

    def read(self, keys: Sequence[Key], kind: str, site: str) -> np.ndarray:
        """The vectors (texts, D) of one kind at one site, as float32, in the order asked for."""
        out: np.ndarray | None = None
        for i, chunk, at, rows in self._found(keys, ("vector", kind, site)):
            self._trust(chunk, kind, site)
            values = self._map(i, kind, partial(chunk.map_kind, self.folder, kind))[chunk.sites.index(site)]
            if out is None:
                out = np.empty((len(keys), values.shape[1]), dtype=np.float32)
            if values.shape[1] != out.shape[1]:
                raise RunFolderError(
                    f"{self.folder} holds {kind!r} vectors at {site!r} of {out.shape[1]} and of {values.shape[1]} dimensions: "
                    "two different models under one description. Remove this folder and let the description tell them apart."
                )
            out[at] = values[rows]
        return np.empty((0, 0), dtype=np.float32) if out is None else out

    def read_numbers(self, keys: Sequence[Key], name: str, site: str | None = None) -> np.ndarray:
        """A number of each text, (texts,). One that was stored per site comes as (sites, texts) where no site is given."""
        self._use()
        flat = self._index.knows(("number", name, None))
        if site is None and not flat:
            sites = list(dict.fromkeys(s for chunk in self._index.chunks if name in chunk.numbers for s in chunk.sites))
            if sites:
                return np.stack([self.read_numbers(keys, name, s) for s in sites])
        parts = []
        for i, chunk, at, rows in self._found(keys, ("number", name, None if flat else site)):
            self._trust(chunk, "", None)
            values = self._map(i, None, partial(chunk.map_numbers, self.folder))[name]
            parts.append((at, values[rows] if flat or site is None else values[chunk.sites.index(site), rows]))
        out = np.empty(len(keys), dtype=np.result_type(*(values.dtype for _, values in parts)) if parts else np.float64)
        for at, values in parts:
            out[at] = values
        return out

    def _found(self, keys: Sequence[Key], column: Column) -> Iterator[tuple[int, Chunk, np.ndarray, np.ndarray]]:
        """Chunk by chunk: its number, itself, which of the texts asked for it serves, and their rows in it, ascending."""
        self._use()
        chunk, row = self._index.locate(as_keys(keys), column)
        missing = np.flatnonzero(chunk < 0)
        if len(missing):
            what = f"{column[0]} {column[1]!r}" + (f" at {column[2]!r}" if column[2] is not None else "")
            raise MissingVectorsError(
                f"the embedding store has no {what} for {len(missing)} of {len(keys)} texts (first: text number {missing[0]}) in "
                f"{self.folder}. Encode them first; refresh() shows what other processes have added."
            )
        order = np.lexsort((row, chunk))
        for at in np.split(order, np.flatnonzero(np.diff(chunk[order])) + 1) if len(order) else ():
            i = int(chunk[at[0]])
            yield i, self._index.chunks[i], at, row[at]

    def _map(self, chunk: int, what: str | None, make: Callable[[], Any]) -> Any:
        if (chunk, what) not in self._maps:
            if len(self._maps) >= _most_maps():
                self._maps.clear()
            try:
                self._maps[chunk, what] = self._make_map(make)
            except (OSError, ValueError) as error:  # ValueError: mapped beyond its end
                raise _unreadable(error) from error
        return self._maps[chunk, what]

    def _make_map(self, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._maps:
                raise
        self._maps.clear()  # others in this process have files open, too
        return make()

    def _use(self) -> None:
        """Note the use; does not make a folder that was pruned again, but opens one that another process has made."""
        if self._hold is None and (self.folder / DESCRIPTION).exists():
            self.open()
        self._touch()

    def _touch(self) -> None:
        with contextlib.suppress(OSError):  # gone, or on a disk that can only be read
            os.utime(self.folder / USED, follow_symlinks=os.utime not in os.supports_follow_symlinks)

    def _clear(self) -> None:
        self._index, self._known, self._maps = ChunkIndex(), set(), {}


def _most_maps() -> int:
    """How many files may be mapped at once. Each stays open, so that at most a quarter of what a process may open is taken."""
    if resource is None:
        return _MAPS
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MAPS if soft == resource.RLIM_INFINITY else max(8, min(_MAPS, soft // 4))


def remove_leftovers(folder: Path, known: set[str]) -> None:
    """Remove what a killed writer left in a space: files of no known chunk, old enough to be nobody's work in progress."""
    before = time.time() - _LEFTOVER_S
    atomic.remove_parts(folder)
    for entry in os.scandir(folder):
        data = entry.name.endswith((".npy", ".numbers")) and entry.name.split(".")[0] not in known
        with contextlib.suppress(OSError):
            if (data or entry.name.endswith(atomic.PART)) and entry.stat().st_mtime < before:
                os.unlink(entry.path)


def _unreadable(error: Exception) -> RunFolderError:
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return RunFolderError(
            f"the embedding store needs more open files than this process may have ({error}): `ulimit -n 4096`."
        )
    return RunFolderError(
        f"a part of the embedding store was removed or changed while in use ({error}). Run the same command again: "
        "what is missing will be encoded again."
    )


def space_key(description: Mapping[str, Any]) -> str:
    """The key of a description; descriptions that differ in anything have different keys."""
    _check_plain(description, "description")
    whole = {"format": _FORMAT, "description": description}
    # Not ASCII: its escapes would spell some pairs of surrogates like one character.
    text = json.dumps(whole, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def describe(folder: Path) -> dict[str, Any] | None:
    """What a space's folder says that it holds; None where that cannot be read."""
    try:
        description = json.loads((folder / DESCRIPTION).read_bytes().decode("utf-8", "surrogatepass"))["description"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return description if isinstance(description, dict) else None


def _check_plain(value: Any, where: str) -> None:
    """Refuse what JSON would write like something else: {1: …} like {"1": …}, or anything through its str()."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}: keys must be text")
            _check_plain(inner, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            _check_plain(inner, f"{where}[{i}]")
    elif not (value is None or isinstance(value, (str, int, bool)) or (isinstance(value, float) and math.isfinite(value))):
        raise TypeError(f"{where} is {value!r}, which is not plain JSON: give text, finite numbers, lists and dicts only")


def _check(texts: int, vectors: Mapping[str, np.ndarray], sites: Sequence[str], numbers: Mapping[str, np.ndarray]) -> None:
    if not sites or len(set(sites)) != len(sites):
        raise ValueError(f"sites must be given, each once, not {list(sites)}")
    if not vectors and not numbers:
        raise ValueError("nothing to store: give vectors, numbers or both")
    for kind, array in vectors.items():
        if array.ndim != 3 or array.shape[:2] != (len(sites), texts) or not array.shape[2] or array.dtype.kind != "f":
            wanted = f"({len(sites)} sites, {texts} texts, D)"
            raise ValueError(f"vectors {kind!r} must be floats of shape {wanted}, not {array.dtype} {array.shape}")
    for name, array in numbers.items():
        if array.shape not in ((texts,), (len(sites), texts)) or array.dtype.kind not in "biuf":
            wanted = f"({texts} texts,) or ({len(sites)} sites, {texts} texts)"
            raise ValueError(f"numbers {name!r} must be numbers of shape {wanted}, not {array.dtype} {array.shape}")
