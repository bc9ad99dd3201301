"""From a file, encoded bytes or an array to a picture."""

from __future__ import annotations

import hashlib
import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from layerscope.errors import MissingExtraError

if TYPE_CHECKING:
    from PIL.Image import Image

Item = Path | bytes | np.ndarray


def pillow() -> Any:
    """Pillow's Image module."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("reading images", "vision") from None
    return Image


def decode(item: Item) -> Image:
    """The picture, read in full: of a damaged file this raises."""
    image = pillow()
    if isinstance(item, np.ndarray):
        return image.fromarray(np.ascontiguousarray(item))
    source = io.BytesIO(item) if isinstance(item, bytes) else item
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about odd but readable metadata
        with image.open(source) as opened:
            opened.load()
            upright = _upright(opened)
            return upright.copy() if upright is opened else upright


def _upright(opened: Image) -> Image:
    """Turned as the camera says; without that most of the phone's pictures lie on their side."""
    from PIL import ImageOps

    return ImageOps.exif_transpose(opened) or opened


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
    except MissingExtraError:
        raise
    except Exception as error:  # of many kinds: each format's decoder has its own
        return found, f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return found, None
