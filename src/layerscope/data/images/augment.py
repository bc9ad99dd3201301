"""Views of an image: a crop, a flip, other colors, a blur. Seeded by the image itself, so that order never matters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

AREA = (0.35, 1.0)  # share of the image that a crop keeps
RATIO = (3 / 4, 4 / 3)  # of a crop's width to its height, beside the image's own
FLIP = 0.5
JITTER, STRENGTH, HUE = 0.8, 0.4, 0.1  # how often colors change; by how much; hue as a share of the circle
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
    from PIL import Image as pil
    from PIL import ImageEnhance, ImageFilter

    gray = image.mode in ("L", "1", "I", "I;16", "F")
    view = image.convert("L" if gray else "RGB")
    size = view.size
    view = view.resize(size, pil.Resampling.BILINEAR, box=_crop(size, rng))
    if rng.random() < FLIP:
        view = view.transpose(pil.Transpose.FLIP_LEFT_RIGHT)
    jitter, factors, hue = rng.random() < JITTER, rng.uniform(1 - STRENGTH, 1 + STRENGTH, 3), rng.uniform(-HUE, HUE)
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
    from PIL import Image as pil

    hue, saturation, value = image.convert("HSV").split()
    turned = (np.asarray(hue, dtype=np.int16) + round(share * 256)) % 256
    return pil.merge("HSV", (pil.fromarray(turned.astype(np.uint8)), saturation, value)).convert("RGB")
