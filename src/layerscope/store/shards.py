"""Finished parts of a run on disk, so that memory stays bounded and an interruption loses one part
at most.

A shard is some prompts with all their views: pooled vectors (sites, prompts, views, D) in a file,
and per-prompt numbers. Both carry checksums.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.store import checked


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
    """Vectors in a file, read and checked one site at a time.

    The file is not mapped: pages of a map that stays open would pile up in memory until all of them
    are there.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._checked: set[int] = set()  # a site that was read before is not checked again

    @cached_property
    def on_disk(self) -> checked.CheckedArray:
        """The file: its shape and where its numbers are."""
        return checked.CheckedArray.open(self.file)

    def __getitem__(self, site: int) -> np.ndarray:
        part = self.on_disk.read_part(site, check=site not in self._checked)
        self._checked.add(site)
        return part

    def rows(self, site: int) -> StoredRows:
        """The prompts' own vectors at one site, read when they are looked at."""
        return StoredRows(self, site)


class StoredRows:
    """Vectors (prompts, D) in a file that are read whenever they are looked at, and never kept in
    memory."""

    ndim = 2

    def __init__(self, vectors: StoredVectors, site: int) -> None:
        self._vectors, self._site = vectors, site
        whole = vectors.on_disk.shape
        self.shape: tuple[int, int] = (whole[1], whole[3])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> np.ndarray:
        return self.__array__()[which]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        read = self._vectors[self._site][:, 0]
        return read if dtype is None else read.astype(dtype)


class ShardStore:
    """Shards in a folder, by number. A shard exists once its numbers do; they are written last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _files(self, index: int) -> tuple[Path, Path]:
        return self.folder / f"{index:06d}.pooled.npy", self.folder / f"{index:06d}.values.npz"

    def has(self, index: int) -> bool:
        """Return whether a shard is finished and undamaged; a damaged file of it is removed."""
        pooled, values = self._files(index)
        return (
            checked.read_or_discard(values, checked.read_arrays) is not None
            and checked.read_or_discard(pooled, checked.read_array) is not None
        )

    def write(self, index: int, shard: Shard) -> None:
        """Write a finished shard."""
        pooled, values = self._files(index)
        assert isinstance(shard.pooled, np.ndarray)
        checked.write_array(pooled, shard.pooled, parts=True)
        checked.write_arrays(values, {"prompts": shard.prompts, **shard.values})

    def vectors(self, index: int) -> StoredVectors:
        """A shard's vectors, which stay on disk until they are touched."""
        return StoredVectors(self._files(index)[0])

    def read(self, index: int) -> Shard:
        """Read a shard; its vectors stay on disk until they are touched."""
        pooled, values = self._files(index)
        numbers = checked.read_arrays(values)
        return Shard(numbers.pop("prompts"), StoredVectors(pooled), numbers)
