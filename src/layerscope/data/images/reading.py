"""Images and their views as a model's input."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from layerscope.data.images.imageset import ImageSet
from layerscope.data.images.work import Request
from layerscope.data.images.workers import ImageWorkers, split


class PixelReader:
    """Decodes, augments and prepares images with a model's processor, in worker processes where there are many. A context.

    >>> from layerscope.data.images import PixelPreparation
    >>> with PixelReader(PixelPreparation((4, 4), channels=1)) as reader:
    ...     reader.read(ImageSet.of([np.zeros((8, 8), np.uint8)]), [0])[0].shape
    (1, 4, 4)
    """

    def __init__(self, processor: Any, workers: int | None = None) -> None:
        self._workers = ImageWorkers(processor, workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes."""
        self._workers.close()

    def read(self, images: ImageSet, indices: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Prepared images: (channels, height, width) float32, or (pixels,) numbers of a palette."""
        items = [images.items[int(i)] for i in indices]
        requests = [Request("prepare", items[part]) for part in split(items)]
        return [row for rows in self._workers.map(requests) for row in rows]

    def views(self, images: ImageSet, indices: Sequence[int] | np.ndarray, n_views: int, seed: int) -> list[np.ndarray]:
        """Prepared views, `n_views` of each image, image by image."""
        items = [images.items[int(i)] for i in indices]
        keys = [int.from_bytes(images.digests[int(i)][:8], "big") for i in indices]
        requests = [Request("views", items[part], keys[part], n_views, seed) for part in split(items, max(1, 16 // n_views))]
        return [row for rows in self._workers.map(requests) for row in rows]
