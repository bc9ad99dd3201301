"""What a process does with some images: look whether they can be decoded, prepare them, or prepare views of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from layerscope.data.images.augment import augment, view_rng
from layerscope.data.images.decoding import Item, decode, inspect

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Request:
    """Some images and what is wanted of them; `keys` are the images' own, for the seeds of views."""

    what: Literal["inspect", "prepare", "views"]
    items: Sequence[Item]
    keys: Sequence[int] = ()
    views: int = 0
    seed: int = 0


def answer(request: Request, processor: Any) -> list[Any]:
    """One answer per image (`inspect`: digest and complaint; `prepare`: an array), or `views` arrays per image."""
    if request.what == "inspect":
        return [inspect(item) for item in request.items]
    if request.what == "prepare":
        return [prepare(decode(item), processor) for item in request.items]
    made = []
    for item, key in zip(request.items, request.keys, strict=True):
        image = decode(item)
        made += [prepare(augment(image, view_rng(key, view, request.seed)), processor) for view in range(request.views)]
    return made


def prepare(image: Image, processor: Any) -> np.ndarray:
    """An image as its model's processor makes it: (channels, height, width), or numbers of a palette (pixels,)."""
    own = getattr(processor, "prepare", None)
    if own is not None:
        return own(image)
    # transformers' processors want colour; a grey image becomes three equal channels
    found = processor(images=[image.convert("RGB")], return_tensors="np")
    values = found["pixel_values"] if "pixel_values" in found else found["input_ids"]
    return np.ascontiguousarray(np.asarray(values)[0])
