"""Images as one file of arrays, so that a machine without network can train on them, and as tensors
on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

DATA = ("fashion-mnist", "digits")
PATCH = {"fashion-mnist": 4, "digits": 2}
FLIPS = {"fashion-mnist"}  # a mirrored shirt is a shirt, a mirrored 2 is no digit
_TEST = 0.25  # digits come without a split


@dataclass(frozen=True)
class Images:
    """Greyscale images (n, H, W) uint8 with class numbers, in a training and a test part."""

    name: str
    train: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray
    classes: tuple[str, ...]

    @property
    def size(self) -> int:
        """Pixels along one side."""
        return int(self.train.shape[1])

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation of the training pixels, as shares of white."""
        return float(self.train.mean() / 255), float(self.train.std() / 255)

    def part(self, count: int) -> Images:
        """The first images of each part only."""
        few = {"train": self.train[:count], "train_labels": self.train_labels[:count]}
        few |= {"test": self.test[:count], "test_labels": self.test_labels[:count]}
        return Images(self.name, classes=self.classes, **few)


def fetch(name: str) -> Images:
    """From layerscope's catalogue: the package index, or scikit-learn for the digits."""
    from layerscope_media import load_images

    if name == "digits":
        every = load_images("digits")
        pixels, labels = _stacked(every.items), np.asarray(every.labels)
        test = _held_out(labels)
        return Images(
            name, pixels[~test], labels[~test], pixels[test], labels[test], tuple(every.classes)
        )
    parts = [load_images(name, split=split) for split in ("train", "test")]
    (a, la), (b, lb) = [(_stacked(part.items), np.asarray(part.labels)) for part in parts]
    return Images(name, a, la, b, lb, tuple(parts[0].classes))


def write(file: Path, sets: list[Images]) -> None:
    """All sets in one compressed file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, np.ndarray] = {}
    for images in sets:
        for field in ("train", "train_labels", "test", "test_labels"):
            array = getattr(images, field)
            arrays[f"{images.name}/{field}"] = array.astype(np.uint8)
        arrays[f"{images.name}/classes"] = np.array(images.classes)
    with open(file, "wb") as stream:
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]


def read(file: Path, name: str) -> Images:
    """One set of such a file."""
    with np.load(file, allow_pickle=False) as held:
        fields = {
            field: held[f"{name}/{field}"]
            for field in ("train", "train_labels", "test", "test_labels")
        }
        classes = tuple(str(c) for c in held[f"{name}/classes"])
    fields = {
        field: array.astype(np.int64) if "labels" in field else array
        for field, array in fields.items()
    }
    return Images(name, classes=classes, **fields)


def prepared(pixels: np.ndarray, moments: tuple[float, float], device: torch.device) -> Tensor:
    """Model inputs (n, 1, H, W): standardised with the training pixels' moments."""
    mean, std = moments
    return (torch.from_numpy(pixels).to(device).unsqueeze(1).float() / 255 - mean) / std


def augmented(pixels: Tensor, flip: bool, shift: int, generator: torch.Generator) -> Tensor:
    """Each image moved by up to `shift` pixels either way (its edge is repeated), and mirrored half
    of the time."""
    count, _, height, width = pixels.shape
    device = pixels.device
    moves = torch.randint(-shift, shift + 1, (count, 2), generator=generator, device=device)
    rows = (torch.arange(height, device=device) + moves[:, :1]).clamp(0, height - 1)
    columns = (torch.arange(width, device=device) + moves[:, 1:]).clamp(0, width - 1)
    if flip:
        mirrored = torch.rand(count, 1, generator=generator, device=device) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    which = torch.arange(count, device=device).view(-1, 1, 1)
    return pixels[which, 0, rows.unsqueeze(2), columns.unsqueeze(1)].unsqueeze(1)


def _stacked(items: Sequence[Any]) -> np.ndarray:
    """Both sets come as arrays."""
    return np.stack([np.asarray(item, dtype=np.uint8) for item in items])


def _held_out(labels: np.ndarray) -> np.ndarray:
    """A quarter of every class, drawn with a fixed seed."""
    rng = np.random.default_rng(0)
    test = np.zeros(len(labels), dtype=bool)
    for c in np.unique(labels):
        at = np.flatnonzero(labels == c)
        test[rng.permutation(at)[: round(_TEST * len(at))]] = True
    return test
