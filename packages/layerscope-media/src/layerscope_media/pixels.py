"""Prepare images and their views as a model's input, in several processes if there are many.

`PixelPreparation` turns an image into a model's input if the model has no processor of
transformers. A view is cropped, flipped, recolored and blurred at random. Its random numbers depend
on the image's content, so that the order of images does not matter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as pil
from PIL import ImageEnhance, ImageFilter
from PIL.Image import Image

from layerscope.data import WorkerPool, cores_here
from layerscope.errors import DataError, LayerscopeError, ModelError, UnknownNameError
from layerscope_media.imageset import ImageSet, Item, decode, inspect

FILE = "preprocessor_config.json"
KIND = "layerscope-pixels"
_RESAMPLE = {"nearest": 0, "bilinear": 2, "bicubic": 3}


@dataclass(frozen=True)
class PixelPreparation:
    """Resize, crop, scale to 0 … 1, subtract `mean` and divide by `std`.

    `size` is (height, width). With `resize` the shorter side is first resized to that many pixels
    and the center cropped; without it the image is stretched to `size`. One channel means gray.

    >>> white = pil.new("RGB", (4, 4), "white")
    >>> PixelPreparation((2, 2), channels=1).prepare(white).tolist()
    [[[1.0, 1.0], [1.0, 1.0]]]
    """

    size: tuple[int, int]
    channels: int = 3
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    resize: int | None = None
    resample: str = "bilinear"

    def __post_init__(self) -> None:
        if self.resample not in _RESAMPLE:
            raise UnknownNameError("resample", self.resample, _RESAMPLE)
        if self.channels not in (1, 3):
            raise ModelError(f"images have 1 channel (gray) or 3 (color), not {self.channels}.")

    def prepare(self, image: Image) -> np.ndarray:
        """Return one image as (channels, height, width), float32."""
        image = image.convert("L" if self.channels == 1 else "RGB")
        height, width = self.size
        resample: Any = _RESAMPLE[self.resample]
        if self.resize is not None:
            factor = self.resize / min(image.size)
            new_width = max(width, round(image.width * factor))
            new_height = max(height, round(image.height * factor))
            image = image.resize((new_width, new_height), resample)
            x = (image.width - width) // 2
            y = (image.height - height) // 2
            image = image.crop((x, y, x + width, y + height))
        elif image.size != (width, height):
            image = image.resize((width, height), resample)
        values = np.asarray(image, dtype=np.float32).reshape(height, width, self.channels) / 255
        mean = np.array(self.mean, dtype=np.float32)
        std = np.array(self.std, dtype=np.float32)
        normed = (values - mean) / std
        return np.ascontiguousarray(normed.transpose(2, 0, 1), dtype=np.float32)

    def __call__(
        self, images: Sequence[Image] | Image, return_tensors: str = "np", **_: Any
    ) -> dict[str, np.ndarray]:
        """Prepare images with the signature of transformers' processors."""
        several = images if isinstance(images, Sequence) else [images]
        return {"pixel_values": np.stack([self.prepare(image) for image in several])}

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return {"image_processor_type": KIND, **asdict(self)}

    def save_pretrained(self, folder: str | Path) -> None:
        """Write preprocessor_config.json, which `layerscope.load` reads."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_dict(), indent=2) + "\n"
        (Path(folder) / FILE).write_text(text, encoding="utf-8")

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> PixelPreparation:
        """Make a preparation from the values of `to_dict`."""
        fields: dict[str, Any] = {
            name: tuple(facts[name]) if isinstance(facts[name], list) else facts[name]
            for name in cls.__dataclass_fields__
            if name in facts
        }
        return cls(**fields)


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def as_pair(side: Any) -> tuple[int, int]:
    """Return a height and a width, of which a configuration may give one number for both."""
    return (side[0], side[1]) if isinstance(side, (list, tuple)) else (side, side)


def default_preparation(config: Any) -> PixelPreparation:
    """Return the preparation of a model without one: stretch to its size and scale to −1 … 1; for
    AIM the evaluation transform of its authors."""
    channels = int(getattr(config, "num_channels", 3))
    height, width = as_pair(getattr(config, "image_size", 224))
    if getattr(config, "model_type", None) == "aim" and channels == 3:
        return PixelPreparation(
            (height, width), 3, IMAGENET_MEAN, IMAGENET_STD, -(-height * 8 // 7), "bicubic"
        )
    return PixelPreparation((height, width), channels)


AREA = (0.35, 1.0)  # share of the image that a crop keeps
RATIO = (3 / 4, 4 / 3)  # of a crop's width to its height, relative to the image's own
FLIP = 0.5
JITTER = 0.8
STRENGTH = 0.4
HUE = 0.1  # how often colors change; by how much; hue as a share of the circle
BLUR = 0.5
SIGMA = (0.1, 2.0)  # how often an image is blurred; by how many pixels of 224

RECIPE = (
    f"crop to {AREA[0]:.0%}–{AREA[1]:.0%} of the area (sides 3:4 to 4:3), back to size; "
    f"flip left to right with chance {FLIP}; "
    f"brightness, contrast and saturation ±{STRENGTH:.0%}, hue ±{HUE:.0%} with chance {JITTER}; "
    f"Gaussian blur of {SIGMA[0]}–{SIGMA[1]} pixels at 224 with chance {BLUR}"
)


def view_rng(key: int, view: int, seed: int) -> np.random.Generator:
    """Return the random generator of one view of one image."""
    key = int(key)
    return np.random.default_rng([seed, key >> 32, key & 0xFFFFFFFF, view])


def augment(image: Image, rng: np.random.Generator) -> Image:
    """Return a random view of the same size; gray images stay gray."""
    gray = image.mode in ("L", "1", "I", "I;16", "F")
    view = image.convert("L" if gray else "RGB")
    size = view.size
    view = view.resize(size, pil.Resampling.BILINEAR, box=_crop(size, rng))
    if rng.random() < FLIP:
        view = view.transpose(pil.Transpose.FLIP_LEFT_RIGHT)
    jitter = rng.random() < JITTER
    factors = rng.uniform(1 - STRENGTH, 1 + STRENGTH, 3)
    hue = rng.uniform(-HUE, HUE)
    if jitter:
        view = ImageEnhance.Brightness(view).enhance(float(factors[0]))
        view = ImageEnhance.Contrast(view).enhance(float(factors[1]))
        if not gray:
            view = _shift_hue(ImageEnhance.Color(view).enhance(float(factors[2])), float(hue))
    blur = rng.random() < BLUR
    sigma = rng.uniform(*SIGMA)
    if blur:
        view = view.filter(ImageFilter.GaussianBlur(float(sigma) * min(size) / 224))
    return view


def _crop(size: tuple[int, int], rng: np.random.Generator) -> tuple[float, float, float, float]:
    """Return a random box (left, top, right, bottom) inside the image."""
    width, height = size
    area = rng.uniform(*AREA)
    ratio = np.exp(rng.uniform(*np.log(RATIO)))
    wide = width * min(1.0, np.sqrt(area * ratio))
    high = height * min(1.0, np.sqrt(area / ratio))
    x = rng.uniform(0, 1) * (width - wide)
    y = rng.uniform(0, 1) * (height - high)
    return float(x), float(y), float(x + wide), float(y + high)


def _shift_hue(image: Image, share: float) -> Image:
    """Return an image with its hues shifted by a share of the circle."""
    hue, saturation, value = image.convert("HSV").split()
    shifted = (np.asarray(hue, dtype=np.int16) + round(share * 256)) % 256
    new_hue = pil.fromarray(shifted.astype(np.uint8))
    return pil.merge("HSV", (new_hue, saturation, value)).convert("RGB")


_AT_ONCE = 16
_MOST_WORKERS = 8
_START_AFTER = 400  # images: for fewer, starting processes takes longer


def answer(
    processor: Any, request: tuple[Callable[..., list[Any]], list[Item], tuple[Any, ...]]
) -> list[Any]:
    """Apply one of the three functions below to some images, in a worker."""
    function, items, arguments = request
    return function(processor, items, *arguments)


def inspected(processor: Any, items: Sequence[Item]) -> list[tuple[bytes, str | None]]:
    """Return each image's digest, and the reason if it cannot be decoded."""
    return [inspect(item) for item in items]


def prepared(processor: Any, items: Sequence[Item]) -> list[np.ndarray]:
    """Return the model's input for each image."""
    return [prepare(decode(item), processor) for item in items]


def prepared_views(
    processor: Any, items: Sequence[Item], keys: Sequence[int], views: int, seed: int
) -> list[np.ndarray]:
    """Return the model's input for `views` views of each image; `keys` seed the random numbers."""
    arrays = []
    for item, key in zip(items, keys, strict=True):
        image = decode(item)
        for view in range(views):
            arrays.append(prepare(augment(image, view_rng(key, view, seed)), processor))
    return arrays


def prepare(image: Image, processor: Any) -> np.ndarray:
    """Return an image as its model's processor prepares it: (channels, height, width), or palette
    indices (pixels,)."""
    method = getattr(processor, "prepare", None)
    if method is not None:
        return method(image)
    # transformers' processors need color; a gray image gets three equal channels
    outputs = processor(images=[image.convert("RGB")], return_tensors="np")
    values = outputs["pixel_values"] if "pixel_values" in outputs else outputs["input_ids"]
    return np.ascontiguousarray(np.asarray(values)[0])


def _requests(function: Callable[..., list[Any]], items: Sequence[Item]) -> list[Any]:
    return [(function, items[i : i + _AT_ONCE], ()) for i in range(0, len(items), _AT_ONCE)]


class PixelReader(AbstractContextManager["PixelReader"]):
    """Decodes, augments and prepares images with a model's processor. Use it as a context.

    For many images it starts `workers` child processes; with 0 or 1 it works in this process.

    >>> from layerscope_media import PixelPreparation
    >>> with PixelReader(PixelPreparation((4, 4), channels=1)) as reader:
    ...     reader.read(ImageSet.of([np.zeros((8, 8), np.uint8)]), [0])[0].shape
    (1, 4, 4)
    """

    def __init__(self, processor: Any = None, workers: int | None = None) -> None:
        self.processor = processor
        self._asked = workers
        self._count = min(_MOST_WORKERS, cores_here()) if workers is None else workers
        self._pool: WorkerPool | None = None
        self._done = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy for another process, without the workers."""
        return PixelReader, (self.processor, self._asked)

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes."""
        pool = self._pool
        self._pool = None
        if pool is not None:
            pool.close()

    def inspect(self, items: Sequence[Item]) -> list[tuple[bytes, str | None]]:
        """Return each image's digest, and the reason if it cannot be decoded, else None."""
        return self._map(_requests(inspected, items), len(items))

    def read(self, images: ImageSet, indices: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Return prepared images: (channels, height, width), float32, or palette indices
        (pixels,)."""
        items = [images.items[int(i)] for i in indices]
        return self._map(_requests(prepared, items), len(items))

    def views(
        self, images: ImageSet, indices: Sequence[int] | np.ndarray, n_views: int, seed: int
    ) -> list[np.ndarray]:
        """Return `n_views` prepared views of each image, image by image."""
        items = [images.items[int(i)] for i in indices]
        keys = [int.from_bytes(images.digests[int(i)][:8], "big") for i in indices]
        step = max(1, _AT_ONCE // n_views)
        slices = [slice(i, i + step) for i in range(0, len(items), step)]
        return self._map(
            [(prepared_views, items[part], (keys[part], n_views, seed)) for part in slices],
            len(items) * n_views,
        )

    def _map(self, requests: list[Any], images: int) -> list[Any]:
        """Return the results of all requests in order."""
        # workers start at once if their number was given
        if (
            self._pool is None
            and self._count > 1
            and (self._asked is not None or self._done + images >= _START_AFTER)
        ):
            self._pool = WorkerPool(answer, self.processor, self._count)
        self._done += images
        if self._pool is None:
            return [result for request in requests for result in answer(self.processor, request)]
        try:
            return [result for results in self._pool.map(requests) for result in results]
        except LayerscopeError:
            raise
        except Exception as error:
            raise DataError(f"an image could not be prepared: {error}") from error
