"""Items: what a run is about. Texts, or anything else that a model reads as tokens.

`Items` says what every kind offers. How a model reads them is the model's side
(`LoadedModel.open_items`). Another package adds a kind by implementing both; items are then given
to `profile` as an object.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self, overload

if TYPE_CHECKING:
    import numpy as np  # imported where it is used: workers that make views start without it


@dataclass(frozen=True)
class Shown:
    """What a map shows of items: their texts or names, columns, and a sheet of small pictures."""

    texts: list[str] | None = None
    columns: dict[str, list[Any]] = field(default_factory=dict)
    pictures: bytes | None = None


class Items(Protocol):
    """Some items of one kind, in an order that must not matter.

    Subclass it to inherit `source`, `dropped`, `packed` and `warnings`.
    """

    @property
    def name(self) -> str:
        """What the items are called."""

    @property
    def source(self) -> dict[str, Any]:
        """Where the items come from: facts that fit into JSON."""
        return {}

    @property
    def dropped(self) -> dict[str, int]:
        """How many were read but left out, by reason."""
        return {}

    @property
    def kind(self) -> str:
        """What they are, in the plural: `texts`, …"""

    @property
    def fingerprint(self) -> str:
        """A hash of the items, whatever their order."""

    @property
    def keys(self) -> np.ndarray:
        """A number (uint64) for each item, made from its content: it stands for the item wherever
        order must not matter."""

    def __len__(self) -> int:
        """How many there are."""

    def packed(self) -> Items:
        """The same items in a form that is cheap to send to other processes."""
        return self

    def warnings(self) -> list[str]:
        """What a reader of the results must be told about the items."""
        return duplicate_warnings(self)

    def describe(self, numbers: np.ndarray) -> Shown:
        """What a map shows of some of the items."""
        return Shown()


def is_items(data: Any) -> bool:
    """Whether data are items already, not the name of some.

    >>> is_items(["a text"])
    False
    """
    return isinstance(getattr(data, "kind", None), str) and hasattr(data, "fingerprint")


def content_key(content: bytes | str) -> int:
    """A number that stands for a text, or for the bytes of an item, wherever order must not
    matter."""
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")


def duplicate_warnings(items: Items) -> list[str]:
    """What to say about items that are there more than once."""
    count = items.source.get("duplicates")
    if not count:
        return []
    return [
        f"{count} {items.kind} are duplicates: they count as prompts of their own, and as negatives of each other in InfoNCE."
    ]


class PackedTexts(Sequence[str]):
    """Texts in one array of bytes: processes on one machine share it, and decode only what they
    read.

    >>> list(PackedTexts(["one", "", "two"]))
    ['one', '', 'two']
    """

    def __init__(self, texts: Iterable[str]) -> None:
        import numpy as np

        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        self.ends = np.cumsum([0, *(len(part) for part in encoded)], dtype=np.int64)
        self.bytes = np.frombuffer(b"".join(encoded), dtype=np.uint8)

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        """Packed texts; those that are packed already are returned as they are."""
        return texts if isinstance(texts, cls) else cls(texts)

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
        return (
            self.bytes[self.ends[at] : self.ends[at + 1]].tobytes().decode("utf-8", "surrogatepass")
        )
