"""Embeddings on disk: each text is encoded once, and later tasks, layers, readouts and runs read it
back.

A store is a folder of spaces. A space is what one model yields under one set of circumstances
(weights, revision, template, length, precision…): two descriptions that differ in anything are two
spaces. Within a space, vectors are found by kind, site and text. Several processes may read and
write a space at once, and may be killed at any time. Nobody prunes while another process works.
"""

from __future__ import annotations

import hashlib
import shutil
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerscope.core.formatting import describe_size
from layerscope.errors import RunFolderError
from layerscope.store.chunks import Key
from layerscope.store.space import (
    DESCRIPTION,
    USED,
    MissingVectorsError,
    Space,
    bytes_in,
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

DTYPES = ("float32", "float16")
DEFAULT_SIZE = 10 * 2**30


def text_key(text: str) -> Key:
    """The key of a text: 32 bytes that no other text shares."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True)
class SpaceInfo:
    """One space of a store, as it is pruned. `last_used` is in seconds since 1970."""

    key: str
    bytes: int
    last_used: float


class EmbeddingStore:
    """A folder of spaces, at most `size_limit` bytes large (None: no limit)."""

    def __init__(self, root: Path, size_limit: int | None = DEFAULT_SIZE) -> None:
        self.root, self.size_limit = Path(root), size_limit
        self._open: weakref.WeakValueDictionary[str, Space] = weakref.WeakValueDictionary()

    def space(self, description: Mapping[str, Any], dtype: str = "float32") -> Space:
        """Return the space of a description, made where there is none.

        `dtype` is how its vectors are stored (float32 or float16), and part of the description.
        """
        full = {**description, "storage_dtype": dtype}
        key = space_key(full)
        space = self._open.get(key)
        if space is None:
            space = self._open[key] = Space(self.folder(key), full, self.check_room)
        else:
            space.refresh()
        return space

    def size(self) -> int:
        """Return the bytes on disk, all files counted."""
        return bytes_in(self.root)

    def spaces(self) -> list[SpaceInfo]:
        """Return all spaces, least recently used first."""
        infos = [
            SpaceInfo(folder.name, bytes_in(folder), (folder / USED).stat().st_mtime)
            for folder in self.root.glob("??/*")
            if (folder / DESCRIPTION).exists()
        ]
        return sorted(infos, key=lambda info: (info.last_used, info.key))

    def prune(self, keep_bytes: int) -> list[SpaceInfo]:
        """Remove whole spaces, the least recently used first, until the store is `keep_bytes`
        small. Returns those that were removed."""
        excess = self.size() - keep_bytes
        removed = []
        for info in self.spaces():
            if excess <= 0:
                break
            shutil.rmtree(self.folder(info.key), ignore_errors=True)
            removed.append(info)
            excess -= info.bytes
        return removed

    def folder(self, key: str) -> Path:
        """Return where a space lies."""
        return self.root / key[:2] / key

    def check_room(self, need: int) -> None:
        """Raise where `need` more bytes do not fit the limit."""
        if self.size_limit is None or (total := self.size()) + need <= self.size_limit:
            return
        raise RunFolderError(
            f"the embedding store {self.root} is full: {describe_size(need)} more are needed, its limit is "
            f"{describe_size(self.size_limit)}, and it holds {describe_size(total)}. "
            "Raise store_size=, evaluate fewer readouts or layers, store float16, or prune the store "
            "(`layerscope doctor --prune 2GB`). What is stored already is kept and will be reused."
        )
