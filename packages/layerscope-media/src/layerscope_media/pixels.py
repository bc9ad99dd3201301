"""Images and their views as a model's input, prepared by several processes where there are many.

`PixelPreparation` goes from an image to a model's input where no processor of transformers says
how. A view is a crop, a flip, other colors, a blur. It is seeded by the image itself, so that order
never matters.
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

    `size` is (height, width). With `resize` the shorter side is first brought to that many pixels
    and the middle cut out; without it the image is stretched to `size`. One channel means gray.

    >>> PixelPreparation((2, 2), channels=1).prepare(__import__("PIL.Image").Image.new("RGB", (4, 4), "white")).tolist()
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
        """One image as (channels, height, width) float32."""
        image = image.convert("L" if self.channels == 1 else "RGB")
        height, width = self.size
        how: Any = _RESAMPLE[self.resample]
        if self.resize is not None:
            factor = self.resize / min(image.size)
            image = image.resize(
                (
                    max(width, round(image.width * factor)),
                    max(height, round(image.height * factor)),
                ),
                how,
            )
            left, top = (image.width - width) // 2, (image.height - height) // 2
            image = image.crop((left, top, left + width, top + height))
        elif image.size != (width, height):
            image = image.resize((width, height), how)
        values = np.asarray(image, dtype=np.float32).reshape(height, width, self.channels) / 255
        mean, std = np.array(self.mean, dtype=np.float32), np.array(self.std, dtype=np.float32)
        normed = (values - mean) / std
        return np.ascontiguousarray(normed.transpose(2, 0, 1), dtype=np.float32)

    def __call__(
        self, images: Sequence[Image] | Image, return_tensors: str = "np", **_: Any
    ) -> dict[str, np.ndarray]:
        """As transformers' processors are called."""
        several = images if isinstance(images, Sequence) else [images]
        return {"pixel_values": np.stack([self.prepare(image) for image in several])}

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"image_processor_type": KIND, **asdict(self)}

    def save_pretrained(self, folder: str | Path) -> None:
        """Write preprocessor_config.json, which `layerscope.load` reads."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_dict(), indent=2) + "\n"
        (Path(folder) / FILE).write_text(text, encoding="utf-8")

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> PixelPreparation:
        """The opposite of `to_dict`."""
        given: dict[str, Any] = {
            name: facts[name] for name in cls.__dataclass_fields__ if name in facts
        }
        listed: dict[str, Any] = {
            name: tuple(value) for name, value in given.items() if isinstance(value, list)
        }
        return cls(**{**given, **listed})


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def default_preparation(config: Any) -> PixelPreparation:
    """What to do where nothing says it: stretch to the model's size, scale to −1 … 1; AIM as its
    authors evaluate it."""
    side, channels = getattr(config, "image_size", 224), int(getattr(config, "num_channels", 3))
    height, width = side if isinstance(side, (list, tuple)) else (side, side)
    if getattr(config, "model_type", None) == "aim" and channels == 3:
        return PixelPreparation(
            (height, width), 3, IMAGENET_MEAN, IMAGENET_STD, -(-height * 8 // 7), "bicubic"
        )
    return PixelPreparation((height, width), channels)


AREA = (0.35, 1.0)  # share of the image that a crop keeps
RATIO = (3 / 4, 4 / 3)  # of a crop's width to its height, beside the image's own
FLIP = 0.5
JITTER, STRENGTH, HUE = (
    0.8,
    0.4,
    0.1,
)  # how often colors change; by how much; hue as a share of the circle
BLUR, SIGMA = 0.5, (0.1, 2.0)  # how often an image is blurred; by how many pixels of 224

RECIPE = (
    f"crop to {AREA[0]:.0%}–{AREA[1]:.0%} of the area (sides 3:4 to 4:3), back to size; flip left to right with chance {FLIP}; "
    f"brightness, contrast and saturation ±{STRENGTH:.0%}, hue ±{HUE:.0%} with chance {JITTER}; "
    f"Gaussian blur of {SIGMA[0]}–{SIGMA[1]} pixels at 224 with chance {BLUR}"
)


def view_rng(key: int, view: int, seed: int) -> np.random.Generator:
    """Random numbers that belong to one view of one image."""
    key = int(key)
    return np.random.default_rng([seed, key >> 32, key & 0xFFFFFFFF, view])


def augment(image: Image, rng: np.random.Generator) -> Image:
    """One view, of the same size; gray images stay gray."""
    gray = image.mode in ("L", "1", "I", "I;16", "F")
    view = image.convert("L" if gray else "RGB")
    size = view.size
    view = view.resize(size, pil.Resampling.BILINEAR, box=_crop(size, rng))
    if rng.random() < FLIP:
        view = view.transpose(pil.Transpose.FLIP_LEFT_RIGHT)
    jitter, factors, hue = (
        rng.random() < JITTER,
        rng.uniform(1 - STRENGTH, 1 + STRENGTH, 3),
        rng.uniform(-HUE, HUE),
    )
    if jitter:
        view = ImageEnhance.Brightness(view).enhance(float(factors[0]))
        view = ImageEnhance.Contrast(view).enhance(float(factors[1]))
        if not gray:
            view = _turned(ImageEnhance.Color(view).enhance(float(factors[2])), float(hue))
    blur, sigma = rng.random() < BLUR, rng.uniform(*SIGMA)
    if blur:
        view = view.filter(ImageFilter.GaussianBlur(float(sigma) * min(size) / 224))
    return view


def _crop(size: tuple[int, int], rng: np.random.Generator) -> tuple[float, float, float, float]:
    """A box of the wanted area and shape that lies inside the image."""
    width, height = size
    area = rng.uniform(*AREA)
    ratio = np.exp(rng.uniform(*np.log(RATIO)))
    wide, high = width * min(1.0, np.sqrt(area * ratio)), height * min(1.0, np.sqrt(area / ratio))
    left, top = rng.uniform(0, 1) * (width - wide), rng.uniform(0, 1) * (height - high)
    return float(left), float(top), float(left + wide), float(top + high)


def _turned(image: Image, share: float) -> Image:
    """Hues turned by a share of the circle."""
    hue, saturation, value = image.convert("HSV").split()
    turned = (np.asarray(hue, dtype=np.int16) + round(share * 256)) % 256
    return pil.merge("HSV", (pil.fromarray(turned.astype(np.uint8)), saturation, value)).convert(
        "RGB"
    )


_AT_ONCE = 16
_MOST_WORKERS = 8
_START_AFTER = 400  # images: fewer are done before the processes are up


def answer(
    processor: Any, request: tuple[Callable[..., list[Any]], list[Item], tuple[Any, ...]]
) -> list[Any]:
    """What a worker does: one of the three functions below, for some images."""
    do, items, given = request
    return do(processor, items, *given)


def inspected(processor: Any, items: Sequence[Item]) -> list[tuple[bytes, str | None]]:
    """Each image's digest, and why it cannot be decoded."""
    return [inspect(item) for item in items]


def prepared(processor: Any, items: Sequence[Item]) -> list[np.ndarray]:
    """The model's input for each image."""
    return [prepare(decode(item), processor) for item in items]


def prepared_views(
    processor: Any, items: Sequence[Item], keys: Sequence[int], views: int, seed: int
) -> list[np.ndarray]:
    """The same for `views` views of each image; `keys` are the images' own, for the seeds."""
    made = []
    for item, key in zip(items, keys, strict=True):
        image = decode(item)
        made += [
            prepare(augment(image, view_rng(key, view, seed)), processor) for view in range(views)
        ]
    return made


def prepare(image: Image, processor: Any) -> np.ndarray:
    """An image as its model's processor makes it: (channels, height, width), or numbers of a
    palette (pixels,)."""
    own = getattr(processor, "prepare", None)
    if own is not None:
        return own(image)
    # transformers' processors want color; a gray image becomes three equal channels
    found = processor(images=[image.convert("RGB")], return_tensors="np")
    values = found["pixel_values"] if "pixel_values" in found else found["input_ids"]
    return np.ascontiguousarray(np.asarray(values)[0])


class PixelReader(AbstractContextManager["PixelReader"]):
    """Decodes, augments and prepares images with a model's processor. A context.

    Where there are many, `workers` child processes do it; 0 or 1: this process.

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
        """A copy for another process has workers of its own."""
        return PixelReader, (self.processor, self._asked)

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def inspect(self, items: Sequence[Item]) -> list[tuple[bytes, str | None]]:
        """Each image's digest, and why it cannot be decoded, or None if it can."""
        return self._map(
            [(inspected, items[i : i + _AT_ONCE], ()) for i in range(0, len(items), _AT_ONCE)],
            len(items),
        )

    def read(self, images: ImageSet, indices: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Prepared images: (channels, height, width) float32, or (pixels,) numbers of a palette."""
        items = [images.items[int(i)] for i in indices]
        return self._map(
            [(prepared, items[i : i + _AT_ONCE], ()) for i in range(0, len(items), _AT_ONCE)],
            len(items),
        )

    def views(
        self, images: ImageSet, indices: Sequence[int] | np.ndarray, n_views: int, seed: int
    ) -> list[np.ndarray]:
        """Prepared views, `n_views` of each image, image by image."""
        items = [images.items[int(i)] for i in indices]
        keys = [int.from_bytes(images.digests[int(i)][:8], "big") for i in indices]
        parts = [
            slice(i, i + max(1, _AT_ONCE // n_views))
            for i in range(0, len(items), max(1, _AT_ONCE // n_views))
        ]
        return self._map(
            [(prepared_views, items[p], (keys[p], n_views, seed)) for p in parts],
            len(items) * n_views,
        )

    def _map(self, requests: list[Any], images: int) -> list[Any]:
        """The answers to all requests, one after the other."""
        # workers that were asked for in so many words start at once
        if (
            self._pool is None
            and self._count > 1
            and (self._asked is not None or self._done + images >= _START_AFTER)
        ):
            self._pool = WorkerPool(answer, self.processor, self._count)
        self._done += images
        if self._pool is None:
            return [one for request in requests for one in answer(self.processor, request)]
        try:
            return [one for several in self._pool.map(requests) for one in several]
        except LayerscopeError:
            raise
        except Exception as error:
            raise DataError(f"an image could not be prepared: {error}") from error
