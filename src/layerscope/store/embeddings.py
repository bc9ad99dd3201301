"""Embeddings on disk: each text is encoded once, and later tasks, layers, readouts and runs read it
back.

A store is a folder of spaces. A space is what one model yields under one set of circumstances
(weights, revision, template, length, precision…): two descriptions that differ in anything are two
spaces. Within a space, vectors are found by kind, site and text. Several processes may read and
write a store at once, and may be killed at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import secrets
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerscope.core.formatting import describe_size, shorten
from layerscope.errors import RunFolderError
from layerscope.store.chunks import INDEX, ChunkIndex, Key, read_chunk
from layerscope.store.locks import USED, bytes_in, in_use
from layerscope.store.space import (
    DESCRIPTION,
    MissingVectorsError,
    Space,
    describe,
    remove_leftovers,
    space_key,
)
from layerscope.store.verify import DAMAGED, OK, UNKNOWN, Check

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
_REMOVED = ".removed-"
_RECOUNT_S = 60.0  # other processes write to the same store: count the disk again now and then


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
        self._total, self._counted = 0, -math.inf
        for gone in self._folders(f"{_REMOVED}*"):  # a removal that was interrupted
            shutil.rmtree(gone, ignore_errors=True)

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
        self._total, self._counted = bytes_in(self.root), time.monotonic()
        return self._total

    def spaces(self) -> list[SpaceInfo]:
        """All spaces, least recently used first."""
        return self._infos(_count_texts)

    def prune(
        self, keep_bytes: int | None = None, older_than: float | None = None
    ) -> list[SpaceInfo]:
        """Remove whole spaces, least recently used first, and say which.

        Only spaces go that were not used for `older_than` seconds, and only until the store is
        `keep_bytes` small. A space that another process has open stays.
        """
        excess: float = math.inf if keep_bytes is None else self.size() - keep_bytes
        before = math.inf if older_than is None else time.time() - older_than
        removed = []
        for info in self.spaces():
            if excess <= 0:
                break
            if info.last_used <= before and self._remove(info):
                removed.append(info)
                excess -= info.bytes
        return removed

    def verify(self) -> Iterator[Check]:
        """Check every chunk of every space against its checksums."""
        for folder in sorted(self._folders("??/*")):
            if describe(folder) is None:
                yield Check(folder / DESCRIPTION, DAMAGED, "it cannot be read")
            for index in sorted(folder.glob(f"*{INDEX}")):
                try:
                    chunk = read_chunk(folder, index.name[: -len(INDEX)])[0]
                    chunk.check(folder)
                except (ValueError, OSError) as error:
                    yield Check(index, DAMAGED, str(error))
                else:
                    yield Check(index, OK if chunk.sums else UNKNOWN)

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
        """See that `need` more bytes fit the limit; other spaces go for it, the least recently used
        first."""
        if self.size_limit is None:
            return
        if self._total + need > self.size_limit or time.monotonic() - self._counted > _RECOUNT_S:
            self.size()
        excess = self._total + need - self.size_limit
        if excess <= 0:
            return
        free = [
            info
            for info in self._infos()
            if info.key in self._open or not in_use(self.folder(info.key))
        ]
        others = [info for info in free if info.key != current.key]
        if sum(info.bytes for info in others) >= excess:  # or else they would go for nothing
            for info in others:
                if excess > 0 and self._remove(info):
                    log.info(
                        "embedding store: removed %s of %s to make room",
                        describe_size(info.bytes),
                        info.label,
                    )
                    excess -= info.bytes
        if excess > 0:
            raise RunFolderError(
                f"the embedding store {self.root} is full: {describe_size(need)} more are needed, its limit is "
                f"{describe_size(self.size_limit)}, and of the {describe_size(self._total)} that it holds "
                f"{describe_size(current.bytes)} belong to this very model and template. "
                "Raise store_size=, evaluate fewer readouts or layers, store float16, or prune the store. What is stored "
                "already is kept and will be reused."
            )

    def grew(self, count: int) -> None:
        """Note that bytes were written, so that the disk need not be walked for every chunk."""
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

    def _remove(self, info: SpaceInfo) -> bool:
        """Remove a space, unless another process has it open. It disappears at once, however long
        the deleting takes."""
        mine = self._open.get(info.key)
        if mine is not None:
            mine.close()
        folder, away = (
            self.folder(info.key),
            self.root / f"{_REMOVED}{info.key}-{secrets.token_hex(4)}",
        )
        if in_use(folder, otherwise=lambda: os.rename(folder, away)):
            log.info("embedding store: %s is in use by another process and stays", info.label)
            return False
        shutil.rmtree(away, ignore_errors=True)
        self._total -= info.bytes
        return True


def _is_link(space: Path) -> bool:
    return space.is_symlink() or (space.parent.is_symlink() and len(space.parent.name) == 2)


def _count_texts(folder: Path) -> int:
    index = ChunkIndex()
    for path in folder.glob(f"*{INDEX}"):
        with contextlib.suppress(ValueError):  # damaged: not counted, as it is not read
            index.add(*read_chunk(folder, path.name[: -len(INDEX)]))
    return index.texts()
