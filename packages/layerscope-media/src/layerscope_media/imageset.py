"""Decode images from files, encoded bytes or arrays, and hold them in sets with their source and
the number of images that were left out."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image as pil
from PIL import ImageOps
from PIL.Image import Image

from layerscope.catalogue import Entry
from layerscope.data import Shown, duplicate_warnings
from layerscope.errors import DataError

Item = Path | bytes | np.ndarray


def decode(item: Item) -> Image:
    """Decode an image completely; a damaged file raises an error."""
    if isinstance(item, np.ndarray):
        return pil.fromarray(np.ascontiguousarray(item))
    source = io.BytesIO(item) if isinstance(item, bytes) else item
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about odd but readable metadata
        with pil.open(source) as opened:
            opened.load()
            # rotate as the camera recorded: otherwise most pictures of phones lie on their side
            return ImageOps.exif_transpose(opened)


def digest(item: Item) -> bytes:
    """Return a sha256 of an item's content: the encoded file, or an array's shape and values."""
    if isinstance(item, np.ndarray):
        head = f"{item.dtype.str}{item.shape}".encode()
        return hashlib.sha256(head + np.ascontiguousarray(item).tobytes()).digest()
    return hashlib.sha256(item if isinstance(item, bytes) else item.read_bytes()).digest()


def inspect(item: Item) -> tuple[bytes, str | None]:
    """Return an item's digest, and the reason why it cannot be decoded, or None if it can."""
    try:
        sha = digest(item)
    except OSError as error:
        return b"", f"{type(error).__name__}: {error.strerror or error}"
    try:
        picture = decode(item)
        if min(picture.size) < 1:
            return sha, "no pixels"
    except Exception as error:  # each format's decoder raises its own errors
        return sha, f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return sha, None


@dataclass(frozen=True)
class ImageSet:
    """The encoded images of a run, all of which can be decoded.

    `labels` are numbers into `classes`, or None. `fingerprint` identifies the images in any order;
    `ordered_fingerprint` also identifies their order and labels. `source` holds facts that fit into
    JSON, among them the names of images that could not be decoded (`corrupt`). `dropped` counts the
    images that were left out, by reason. A set without digests has not been decoded yet.
    """

    kind: ClassVar[str] = "images"

    items: Sequence[Item]
    names: Sequence[str]
    digests: tuple[bytes, ...] = field(default=(), repr=False)
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
        """Make a set of these images without a check that they can be decoded.

        >>> one, two = np.zeros((4, 4), np.uint8), np.ones((4, 4), np.uint8)
        >>> ImageSet.of([one, two]).fingerprint == ImageSet.of([two, one]).fingerprint
        True
        """
        numbers = None if labels is None else np.asarray(labels, dtype=np.int64)
        if numbers is not None and len(numbers) != len(items):
            raise DataError(
                f"{len(items)} images were given with {len(numbers)} labels; give one label for "
                "each image."
            )
        if numbers is not None and not classes:
            classes = [str(k) for k in range(int(numbers.max(initial=-1)) + 1)]
        if names is None:
            names = [f"image {i}" for i in range(len(items))]
        if digests is None:
            digests = [digest(item) for item in items]
        facts = dict(source or {})
        return cls(items, tuple(names), tuple(digests), numbers, tuple(classes), name, facts)

    @property
    def where(self) -> str:
        """Return the place of the images, for messages."""
        return str(self.source.get("path", self.name))

    @property
    def fingerprint(self) -> str:
        """Return a sha256 over the images in any order."""
        return hashlib.sha256(b"images" + b"".join(sorted(self.digests))).hexdigest()

    @property
    def ordered_fingerprint(self) -> str:
        """Return a sha256 over the images and their labels in their order."""
        labels = b"" if self.labels is None else self.labels.astype("<i8").tobytes()
        return hashlib.sha256(b"images" + b"".join(self.digests) + labels).hexdigest()

    @property
    def keys(self) -> np.ndarray:
        """Return a number for each image that depends only on its content."""
        return np.array([int.from_bytes(sha[:8], "big") for sha in self.digests], dtype=np.uint64)

    def select(self, indices: Sequence[int] | np.ndarray) -> ImageSet:
        """Return the set of the images with these numbers, in this order."""
        chosen = [int(i) for i in indices]
        return replace(
            self,
            items=[self.items[i] for i in chosen],
            names=tuple(self.names[i] for i in chosen),
            digests=tuple(self.digests[i] for i in chosen),
            labels=None if self.labels is None else self.labels[chosen],
        )

    def describe(self, numbers: np.ndarray) -> Shown:
        """Return the names, classes and thumbnails of the images with these numbers."""
        columns: dict[str, list[Any]] = {}
        if self.labels is not None:
            columns["class"] = [self.classes[int(self.labels[int(i)])] for i in numbers]
        return Shown([str(self.names[int(i)]) for i in numbers], columns, _sheet(self, numbers))

    def warnings(self) -> list[str]:
        """Return warnings about images that were left out or occur more than once."""
        out = []
        if "corrupt" in self.dropped:
            named = "; ".join(self.source.get("corrupt", [])[:3])
            out.append(
                f"{self.dropped['corrupt']} images could not be decoded and were left out: {named}."
            )
        if "null" in self.dropped:
            out.append(f"{self.dropped['null']} rows without an image were left out.")
        return out + duplicate_warnings(self)

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)


_SIDE = 32  # pixels of a thumbnail


def _sheet(images: ImageSet, numbers: np.ndarray) -> bytes:
    """Return a JPEG with the images as small squares, row by row."""
    across = int(np.ceil(np.sqrt(len(numbers))))
    sheet = pil.new("RGB", (across * _SIDE, across * _SIDE))
    for place, number in enumerate(numbers):
        picture = decode(images.items[int(number)]).convert("RGB")
        edge = min(picture.size)
        x = (picture.width - edge) // 2
        y = (picture.height - edge) // 2
        small = picture.crop((x, y, x + edge, y + edge)).resize((_SIDE, _SIDE))
        sheet.paste(small, (place % across * _SIDE, place // across * _SIDE))
    stream = io.BytesIO()
    sheet.save(stream, "JPEG", quality=70)
    return stream.getvalue()


@dataclass(frozen=True, kw_only=True)
class ImageSetEntry(Entry):
    """One set in the catalogue; `read(split, folder)` returns its images (N, H, W[, 3]), uint8, and
    its labels (N,)."""

    kind: ClassVar[str] = "image set"
    shelf: ClassVar[str] = "images"

    splits: tuple[str, ...]
    classes: tuple[str, ...]
    read: Callable[[str, Path], tuple[np.ndarray, np.ndarray]]
