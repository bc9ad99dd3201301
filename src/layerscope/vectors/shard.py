"""A shard: some texts with the vectors and numbers that were computed for them at once.

A shard is one safetensors file, which holds the keys of its texts. It is there whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from layerscope.store.checked import ArrayFile, write_arrays

__all__ = ["Shard", "text_key"]

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

    `vectors` maps a reading to an array (sites, texts, width), `numbers` a name to an array (texts,)
    or (sites, texts).
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
        """Compare columns with their checksums, unless that was done before."""
        for column in set(columns) - self._compared:
            self.read(*column)
            self._compared.add(column)
