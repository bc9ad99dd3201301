"""Finished parts of a profile on disk, so that memory stays bounded and an interruption loses one
part at most.

A shard is some prompts with all their views: pooled vectors (sites, prompts, views, D) and numbers
of each prompt, in one file of arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.store.checked import (
    ARRAYS,
    ArrayFile,
    read_arrays,
    read_or_discard,
    write_arrays,
)

_POOLED = "pooled"
_PROMPTS = "prompts"


@dataclass(frozen=True)
class Shard:
    """One finished part: which prompts (`prompts`), their pooled vectors and their numbers (sites,
    prompts).

    `pooled[site]` gives one site's vectors (prompts, views, D), whether they are in memory or on
    disk.
    """

    prompts: np.ndarray
    pooled: np.ndarray | StoredVectors
    values: dict[str, np.ndarray]


class StoredVectors:
    """Vectors in a file, read and checked one site at a time."""

    def __init__(self, path: Path) -> None:
        self._file = ArrayFile(path)
        self.shape = self._file.shape(_POOLED)

    def __getitem__(self, site: int) -> np.ndarray:
        return self._file.read_part(_POOLED, site)

    def rows(self, site: int) -> StoredRows:
        """Return the prompts' own vectors at one site, read when they are looked at."""
        return StoredRows(self, site)


class StoredRows:
    """Vectors (prompts, D) in a file that are read whenever they are looked at, and never kept in
    memory."""

    ndim = 2

    def __init__(self, vectors: StoredVectors, site: int) -> None:
        self._vectors = vectors
        self._site = site
        _, prompts, _, width = vectors.shape
        self.shape = (prompts, width)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> np.ndarray:
        return self.__array__()[which]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        rows = self._vectors[self._site][:, 0]
        return rows if dtype is None else rows.astype(dtype)


class ShardStore:
    """Shards in a folder, by number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _file(self, index: int) -> Path:
        return self.folder / f"{index:06d}{ARRAYS}"

    def has(self, index: int) -> bool:
        """Return whether a shard is finished and undamaged; a damaged one is removed."""
        return read_or_discard(self._file(index), read_arrays) is not None

    def write(self, index: int, shard: Shard) -> None:
        """Write a finished shard."""
        arrays = {_POOLED: shard.pooled, _PROMPTS: shard.prompts, **shard.values}
        write_arrays(self._file(index), arrays)

    def vectors(self, index: int) -> StoredVectors:
        """Return a shard's vectors, which stay on disk until they are touched."""
        return StoredVectors(self._file(index))

    def read(self, index: int) -> Shard:
        """Read a shard; its vectors stay on disk until they are touched."""
        file = ArrayFile(self._file(index))
        values = {name: file.read(name) for name in file.names if name != _POOLED}
        prompts = values.pop(_PROMPTS)
        return Shard(prompts, self.vectors(index), values)
