"""Embeddings on disk: each text is encoded once, and later tasks, layers, readouts and runs read it
back.

A store is a folder of spaces. A space is what one model yields under one set of circumstances
(weights, revision, template, length, precision…): two descriptions that differ in anything are two
spaces. Within a space, vectors are found by kind, site and text. Several processes may read and
write a space at once, and may be killed at any time. Nobody prunes while another process works.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerscope.core.formatting import describe_size, shorten
from layerscope.errors import RunFolderError
from layerscope.store.chunks import INDEX, ChunkIndex, Key, read_chunk
from layerscope.store.space import (
    DESCRIPTION,
    USED,
    MissingVectorsError,
    Space,
    bytes_in,
    describe,
    remove_leftovers,
    space_key,
)

__all__ = [
    "DEFAULT_SIZE",
    "EmbeddingStore",
    "MissingVectorsError",
    "Space",
    "SpaceInfo",
    "text_key",
]

log = logging.getLogger("layerscope")

DTYPES = ("float32", "float16")
DEFAULT_SIZE = 10 * 2**30


def text_key(text: str) -> Key:
    """The key of a text: 32 bytes that no other text shares."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True)
class SpaceInfo:
    """One space of a store, as it is listed and pruned. `last_used` is in seconds since 1970."""

    key: str
    description: dict[str, Any]
    bytes: int
    texts: int
    last_used: float

    @property
    def label(self) -> str:
        """What it holds, in a line."""
        return shorten(json.dumps(self.description, ensure_ascii=False), 120)


class EmbeddingStore:
    """A folder of spaces, at most `size_limit` bytes large (None: no limit)."""

    def __init__(self, root: Path, size_limit: int | None = DEFAULT_SIZE) -> None:
        if size_limit is not None and size_limit < 0:
            raise ValueError(
                f"size_limit is a number of bytes >= 0, or None for no limit, not {size_limit}"
            )
        self.root, self.size_limit = Path(root), size_limit
        self._open: weakref.WeakValueDictionary[str, Space] = weakref.WeakValueDictionary()
        self._total: int | None = None  # bytes on disk, counted when they are first needed

    def space(self, description: Mapping[str, Any], dtype: str = "float32") -> Space:
        """The space of a description, made where there is none. `dtype` is how its vectors are
        stored, and part of it."""
        if dtype not in DTYPES:
            raise ValueError(f"vectors are stored as {' or '.join(DTYPES)}, not {dtype!r}")
        full = {**description, "storage_dtype": dtype}
        key = space_key(full)
        space = self._open.get(key)
        if space is None:
            space = self._open[key] = Space(self.folder(key), key, full, self.make_room, self.grew)
        else:
            space.open()
            space.refresh()
        return space

    def size(self) -> int:
        """Bytes on disk, all files counted."""
        self._total = bytes_in(self.root)
        return self._total

    def spaces(self) -> list[SpaceInfo]:
        """All spaces, least recently used first."""
        return self._infos(_count_texts)

    def prune(self, keep_bytes: int) -> list[SpaceInfo]:
        """Remove whole spaces, the least recently used first, until the store is `keep_bytes`
        small. Returns those that were removed."""
        excess = self.size() - keep_bytes
        removed = []
        for info in self.spaces():
            if excess <= 0:
                break
            self._remove(info)
            removed.append(info)
            excess -= info.bytes
        return removed

    def remove_leftovers(self) -> int:
        """Remove what killed processes left anywhere in the store; returns how many bytes that
        were."""
        before = self.size()
        for folder in self._folders("??/*"):
            remove_leftovers(
                folder, {index.name[: -len(INDEX)] for index in folder.glob(f"*{INDEX}")}
            )
        return before - self.size()

    def folder(self, key: str) -> Path:
        """Where a space lies."""
        folder = self.root / key[:2] / key
        if _is_link(folder):
            raise RunFolderError(
                f"{folder} is a link, and the embedding store follows none. Remove the link."
            )
        return folder

    def make_room(self, need: int, current: Space) -> None:
        """Raise where `need` more bytes do not fit the limit."""
        if self.size_limit is None:
            return
        total = self.size() if self._total is None else self._total
        if total + need > self.size_limit:
            total = self.size()  # other processes may have removed something
        if total + need > self.size_limit:
            raise RunFolderError(
                f"the embedding store {self.root} is full: {describe_size(need)} more are needed, its limit is "
                f"{describe_size(self.size_limit)}, and of the {describe_size(total)} that it holds "
                f"{describe_size(current.bytes)} belong to this very model and template. "
                "Raise store_size=, evaluate fewer readouts or layers, store float16, or prune the store "
                "(`layerscope doctor --prune 2GB`). What is stored already is kept and will be reused."
            )

    def grew(self, count: int) -> None:
        """Note that bytes were written, so that the disk need not be walked for every chunk."""
        if self._total is not None:
            self._total += count

    def _infos(self, texts: Callable[[Path], int] = lambda folder: 0) -> list[SpaceInfo]:
        infos = []
        for folder in self._folders("??/*"):
            if (folder / DESCRIPTION).exists():
                last_used = 0.0
                with contextlib.suppress(OSError):
                    last_used = (folder / USED).stat().st_mtime
                infos.append(
                    SpaceInfo(
                        folder.name,
                        describe(folder) or {},
                        bytes_in(folder),
                        texts(folder),
                        last_used,
                    )
                )
        return sorted(infos, key=lambda info: (info.last_used, info.key))

    def _folders(self, pattern: str) -> list[Path]:
        return [path for path in self.root.glob(pattern) if path.is_dir() and not _is_link(path)]

    def _remove(self, info: SpaceInfo) -> None:
        """Remove a space."""
        mine = self._open.get(info.key)
        if mine is not None:
            mine.close()
        shutil.rmtree(self.folder(info.key), ignore_errors=True)
        if self._total is not None:
            self._total -= info.bytes


def _is_link(space: Path) -> bool:
    return space.is_symlink() or (space.parent.is_symlink() and len(space.parent.name) == 2)


def _count_texts(folder: Path) -> int:
    index = ChunkIndex()
    for path in folder.glob(f"*{INDEX}"):
        with contextlib.suppress(ValueError):  # damaged: not counted, as it is not read
            index.add(*read_chunk(folder, path.name[: -len(INDEX)]))
    return index.texts()
