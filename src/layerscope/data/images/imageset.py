"""A set of images: the items of a run, where they come from and what was left out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from layerscope.data.images.decoding import Item, digest
from layerscope.errors import DataError


@dataclass(frozen=True)
class ImageSet:
    """The images of a run, still encoded; every one of them can be decoded.

    `labels` are numbers into `classes`, or None. `fingerprint` says which images, whatever their order; `ordered_fingerprint`
    says in which order and with which labels as well. `source` holds facts that fit into JSON, among them the names of images
    that could not be decoded (`corrupt`); `dropped` counts what was left out, by reason.
    """

    items: Sequence[Item]
    names: tuple[str, ...]
    digests: tuple[bytes, ...] = field(repr=False)
    labels: np.ndarray | None = None
    classes: tuple[str, ...] = ()
    name: str = "images"
    source: dict[str, Any] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        items: Sequence[Item],
        labels: Sequence[int] | np.ndarray | None = None,
        classes: Sequence[str] = (),
        name: str = "images",
        source: Mapping[str, Any] | None = None,
        names: Sequence[str] | None = None,
        digests: Sequence[bytes] | None = None,
    ) -> ImageSet:
        """A set of exactly these images, taken as decodable.

        >>> one, two = np.zeros((4, 4), np.uint8), np.ones((4, 4), np.uint8)
        >>> ImageSet.of([one, two]).fingerprint == ImageSet.of([two, one]).fingerprint
        True
        """
        known = None if labels is None else np.asarray(labels, dtype=np.int64)
        if known is not None and len(known) != len(items):
            raise DataError(f"{len(items)} images were given with {len(known)} labels; give one label for each image.")
        if known is not None and not classes:
            classes = [str(k) for k in range(int(known.max(initial=-1)) + 1)]
        called = tuple(names) if names is not None else tuple(f"image {i}" for i in range(len(items)))
        read = tuple(digests) if digests is not None else tuple(digest(item) for item in items)
        return cls(items, called, read, known, tuple(classes), name, dict(source or {}))

    @property
    def fingerprint(self) -> str:
        """A sha256 over the images, whatever their order."""
        return hashlib.sha256(b"images" + b"".join(sorted(self.digests))).hexdigest()

    @property
    def ordered_fingerprint(self) -> str:
        """A sha256 over the images and their labels in their order."""
        labels = b"" if self.labels is None else self.labels.astype("<i8").tobytes()
        return hashlib.sha256(b"images" + b"".join(self.digests) + labels).hexdigest()

    @property
    def keys(self) -> np.ndarray:
        """A number for each image, from its content: it stands for the image wherever order must not matter."""
        return np.array([int.from_bytes(found[:8], "big") for found in self.digests], dtype=np.uint64)

    def select(self, indices: Sequence[int] | np.ndarray) -> ImageSet:
        """The images with these numbers, in this order."""
        chosen = [int(i) for i in indices]
        return replace(
            self,
            items=[self.items[i] for i in chosen],
            names=tuple(self.names[i] for i in chosen),
            digests=tuple(self.digests[i] for i in chosen),
            labels=None if self.labels is None else self.labels[chosen],
        )

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)
