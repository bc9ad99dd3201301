"""From an image to a model's input where no processor of transformers says how: our own, in a few plain steps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from layerscope.errors import ModelError, UnknownNameError

if TYPE_CHECKING:
    from PIL.Image import Image

FILE = "preprocessor_config.json"
KIND = "layerscope-pixels"
_RESAMPLE = {"nearest": 0, "bilinear": 2, "bicubic": 3}


@dataclass(frozen=True)
class PixelPreparation:
    """Resize, crop, scale to 0 … 1, subtract `mean` and divide by `std`.

    `size` is (height, width). With `resize` the shorter side is first brought to that many pixels and the middle cut out;
    without it the image is stretched to `size`. One channel means gray.

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
            image = image.resize((max(width, round(image.width * factor)), max(height, round(image.height * factor))), how)
            left, top = (image.width - width) // 2, (image.height - height) // 2
            image = image.crop((left, top, left + width, top + height))
        elif image.size != (width, height):
            image = image.resize((width, height), how)
        values = np.asarray(image, dtype=np.float32).reshape(height, width, self.channels) / 255
        mean, std = np.array(self.mean, dtype=np.float32), np.array(self.std, dtype=np.float32)
        normed = (values - mean) / std
        return np.ascontiguousarray(normed.transpose(2, 0, 1), dtype=np.float32)

    def __call__(self, images: Sequence[Image] | Image, return_tensors: str = "np", **_: Any) -> dict[str, np.ndarray]:
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
        given: dict[str, Any] = {name: facts[name] for name in cls.__dataclass_fields__ if name in facts}
        listed: dict[str, Any] = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
        return cls(**{**given, **listed})


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def default_preparation(config: Any) -> PixelPreparation:
    """What to do where nothing says it: stretch to the model's size, scale to −1 … 1; AIM as its authors evaluate it."""
    side, channels = getattr(config, "image_size", 224), int(getattr(config, "num_channels", 3))
    height, width = side if isinstance(side, (list, tuple)) else (side, side)
    if getattr(config, "model_type", None) == "aim" and channels == 3:
        return PixelPreparation((height, width), 3, IMAGENET_MEAN, IMAGENET_STD, -(-height * 8 // 7), "bicubic")
    return PixelPreparation((height, width), channels)
