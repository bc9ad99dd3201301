"""Every layer of a trained model, read: probes on all images, metrics on a part of the test
images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import layerscope
from layerscope_media import ImageSet
from vision_set.images import Images

PROBES = ("attention", "linear", "mean", "knn")


def image_set(images: Images, pixels: np.ndarray, labels: np.ndarray) -> ImageSet:
    """Return one part of the images as items for layerscope."""
    return ImageSet.of(list(pixels), labels, images.classes, name=images.name)


def probe_model(
    folder: Path,
    images: Images,
    device: torch.device,
    probes: Sequence[str] = PROBES,
    **settings: Any,
) -> layerscope.ProbeRun:
    """Probe every layer of the model in a folder on all images."""
    return layerscope.probe(
        folder,
        image_set(images, images.train, images.train_labels),
        test=image_set(images, images.test, images.test_labels),
        heads=probes,
        device=device,
        progress=False,
        **settings,
    )


def profile_model(folder: Path, images: Images, device: torch.device, count: int) -> pd.DataFrame:
    """Return every metric at every layer on the first test images."""
    items = image_set(images, images.test[:count], images.test_labels[:count])
    model = layerscope.load(folder, device=device)
    return layerscope.profile(model, items, progress=False).table
