"""Every layer of a trained model, read: probes on all images, metrics on a part of the test
images."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import layerscope
from layerscope.data import LabeledItems
from layerscope.probing.job import ProbeJob
from layerscope.probing.run import ProbeRun
from layerscope.probing.training import ProbeRecipe
from layerscope.progress import progress_bar
from layerscope_media.model import ValueBatch
from vision_set.images import Images, prepared

PROBES = ("attention", "linear", "mean", "knn")


class PixelSource:
    """Images that are prepared already: pixels (n, C, H, W) as the model takes them, on any device.

    In the place of `layerscope.probing.frozen.ModelItems`.
    """

    def __init__(self, model: Any, pixels: torch.Tensor) -> None:
        self._model, self._pixels = model, pixels
        count = int(
            model.make_batch([pixels[0].float().cpu().numpy()], tokens="patches").lengths[0]
        )
        self.lengths = [count] * len(pixels)
        self.has_class_token = bool(model.anatomy.class_token)

    def batch(self, items: Sequence[int]) -> ValueBatch:
        """A selection."""
        chosen = self._pixels[torch.from_numpy(np.asarray(items)).to(self._pixels.device)]
        chosen = chosen.to(self._model.device, self._model.dtype)
        none = torch.empty((len(chosen), 0), dtype=torch.int64, device=chosen.device)
        counts, skip = [self.lengths[0]] * len(chosen), self._model.anatomy.leading
        return ValueBatch(none, None, counts, skip, values=chosen)

    def facts(self) -> dict[str, Any]:
        """How many patches there are."""
        return {
            "patches": self.lengths[0],
            "tokens": "patches; class and register tokens are left out",
        }

    def close(self) -> None:
        """Nothing to close."""


def examples_of(images: Images) -> LabeledItems:
    """Both parts as labeled items, numbered through: first the training images, then the test
    images."""
    digest = hashlib.sha256()
    for array in (images.train, images.train_labels, images.test, images.test_labels):
        digest.update(np.ascontiguousarray(array).tobytes())
    labels = np.concatenate([images.train_labels, images.test_labels])
    count = len(images.train)
    parts = {"train": np.arange(count), "test": np.arange(count, len(labels))}
    return LabeledItems(
        "image", images.name, None, labels, images.classes, digest.hexdigest(), parts
    )


def probe_model(
    folder: Path,
    images: Images,
    device: torch.device,
    recipe: ProbeRecipe,
    probes: Sequence[str] = PROBES,
) -> ProbeRun:
    """Probes at every layer of the model in a folder, on all images."""
    model = layerscope.load(folder, device=device)
    pixels = np.concatenate([images.train, images.test])
    source = PixelSource(model, prepared(pixels, images.moments(), device))
    job = ProbeJob(model, examples_of(images), source, list(probes), recipe)
    with progress_bar(False) as bar:
        return job.run(bar)


def profile_model(folder: Path, images: Images, device: torch.device, count: int) -> pd.DataFrame:
    """Every metric at every layer on the first test images."""
    from layerscope_media import ImageSet

    chosen = ImageSet.of(
        list(images.test[:count]), images.test_labels[:count], images.classes, name=images.name
    )
    run = layerscope.profile(layerscope.load(folder, device=device), chosen, progress=False)
    return run.table
