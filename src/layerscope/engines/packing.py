"""Many texts as one block of bytes: workers on one machine share it in the object store, and decode only what they read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np


class PackedTexts(Sequence[str]):
    """Texts, one after the other, in one array.

    >>> list(PackedTexts(["one", "", "two"]))
    ['one', '', 'two']
    """

    def __init__(self, texts: Iterable[str]) -> None:
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        self.ends = np.cumsum([0, *(len(part) for part in encoded)], dtype=np.int64)
        self.bytes = np.frombuffer(b"".join(encoded), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = int(index) + (len(self) if index < 0 else 0)
        if not 0 <= at < len(self):
            raise IndexError(index)
        return self.bytes[self.ends[at] : self.ends[at + 1]].tobytes().decode("utf-8", "surrogatepass")


def packed(items: Sequence[Any]) -> Sequence[Any]:
    """Texts packed; anything else as it is."""
    return PackedTexts(items) if items and all(isinstance(item, str) for item in items) else items
