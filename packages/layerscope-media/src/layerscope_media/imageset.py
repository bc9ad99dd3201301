"""Images: from a file, encoded bytes or an array to a picture; sets of them, where they come from
and what was left out."""

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
    """The picture, read in full: of a damaged file this raises."""
    if isinstance(item, np.ndarray):
        return pil.fromarray(np.ascontiguousarray(item))
    source = io.BytesIO(item) if isinstance(item, bytes) else item
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about odd but readable metadata
        with pil.open(source) as opened:
            opened.load()
            # turned as the camera says: without that most of a phone's pictures lie on their side
            return ImageOps.exif_transpose(opened)


def digest(item: Item) -> bytes:
    """A sha256 of what an item holds: the encoded file, or an array's shape and values."""
    if isinstance(item, np.ndarray):
        head = f"{item.dtype.str}{item.shape}".encode()
        return hashlib.sha256(head + np.ascontiguousarray(item).tobytes()).digest()
    return hashlib.sha256(item if isinstance(item, bytes) else item.read_bytes()).digest()


def inspect(item: Item) -> tuple[bytes, str | None]:
    """An item's digest, and why it cannot be decoded, or None if it can."""
    try:
        found = digest(item)
    except OSError as error:
        return b"", f"{type(error).__name__}: {error.strerror or error}"
    try:
        picture = decode(item)
        if min(picture.size) < 1:
            return found, "no pixels"
    except Exception as error:  # of many kinds: each format's decoder has its own
        return found, f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return found, None


@dataclass(frozen=True)
class ImageSet:
    """The images of a run, still encoded; every one of them can be decoded.

    `labels` are numbers into `classes`, or None. `fingerprint` says which images, whatever their
    order; `ordered_fingerprint` says in which order and with which labels as well. `source` holds
    facts that fit into JSON, among them the names of images that could not be decoded (`corrupt`);
    `dropped` counts what was left out, by reason. A set without digests has been listed, but not
    decoded yet.
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
        """A set of exactly these images, taken as decodable.

        >>> one, two = np.zeros((4, 4), np.uint8), np.ones((4, 4), np.uint8)
        >>> ImageSet.of([one, two]).fingerprint == ImageSet.of([two, one]).fingerprint
        True
        """
        known = None if labels is None else np.asarray(labels, dtype=np.int64)
        if known is not None and len(known) != len(items):
            raise DataError(
                f"{len(items)} images were given with {len(known)} labels; give one label for each image."
            )
        if known is not None and not classes:
            classes = [str(k) for k in range(int(known.max(initial=-1)) + 1)]
        called = (
            tuple(names) if names is not None else tuple(f"image {i}" for i in range(len(items)))
        )
        read = tuple(digests) if digests is not None else tuple(digest(item) for item in items)
        return cls(items, called, read, known, tuple(classes), name, dict(source or {}))

    @property
    def where(self) -> str:
        """Where the images are from, for messages."""
        return str(self.source.get("path", self.name))

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
        """A number for each image, from its content: it stands for the image wherever order must
        not matter."""
        return np.array(
            [int.from_bytes(found[:8], "big") for found in self.digests], dtype=np.uint64
        )

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

    def describe(self, numbers: np.ndarray) -> Shown:
        """The names, classes and small pictures of the images with these numbers."""
        columns: dict[str, list[Any]] = {}
        if self.labels is not None:
            columns["class"] = [self.classes[int(self.labels[int(i)])] for i in numbers]
        return Shown([str(self.names[int(i)]) for i in numbers], columns, _sheet(self, numbers))

    def warnings(self) -> list[str]:
        """What was left out, and what is there more than once."""
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


_SIDE = 32  # pixels of a picture on the page


def _sheet(images: ImageSet, numbers: np.ndarray) -> bytes:
    """Images as small squares of one JPEG, row by row."""
    across = int(np.ceil(np.sqrt(len(numbers))))
    sheet = pil.new("RGB", (across * _SIDE, across * _SIDE))
    for place, number in enumerate(numbers):
        picture = decode(images.items[int(number)]).convert("RGB")
        edge = min(picture.size)
        left, top = (picture.width - edge) // 2, (picture.height - edge) // 2
        small = picture.crop((left, top, left + edge, top + edge)).resize((_SIDE, _SIDE))
        sheet.paste(small, (place % across * _SIDE, place // across * _SIDE))
    stream = io.BytesIO()
    sheet.save(stream, "JPEG", quality=70)
    return stream.getvalue()


@dataclass(frozen=True, kw_only=True)
class ImageSetEntry(Entry):
    """One catalogued set. `read(split, folder)` gives its images (N, H, W[, 3]) uint8 and its
    labels (N,)."""

    kind: ClassVar[str] = "image set"
    shelf: ClassVar[str] = "images"

    splits: tuple[str, ...]
    classes: tuple[str, ...]
    read: Callable[[str, Path], tuple[np.ndarray, np.ndarray]]
