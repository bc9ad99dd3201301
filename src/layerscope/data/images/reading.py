"""Images and their views as a model's input, prepared by several processes where there are many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from layerscope.data.images.augment import augment, view_rng
from layerscope.data.images.imageset import ImageSet, Item, decode, inspect
from layerscope.data.workers import WorkerError, WorkerPool, cores_here
from layerscope.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

_AT_ONCE = 16
_MOST_WORKERS = 8
_START_AFTER = 400  # images: fewer are done before the processes are up


@dataclass(frozen=True)
class Request:
    """Some images and what is wanted of them; `keys` are the images' own, for the seeds of views."""

    what: Literal["inspect", "prepare", "views"]
    items: Sequence[Item]
    keys: Sequence[int] = ()
    views: int = 0
    seed: int = 0


def answer(processor: Any, request: Request) -> list[Any]:
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
    # transformers' processors want color; a gray image becomes three equal channels
    found = processor(images=[image.convert("RGB")], return_tensors="np")
    values = found["pixel_values"] if "pixel_values" in found else found["input_ids"]
    return np.ascontiguousarray(np.asarray(values)[0])


class ImageWorkers:
    """Answers requests with `workers` child processes, which start when there is much to do; 0 or 1: in this process."""

    def __init__(self, processor: Any = None, workers: int | None = None) -> None:
        self.processor = processor
        self._asked = workers
        self._count = min(_MOST_WORKERS, cores_here()) if workers is None else workers
        self._pool: WorkerPool | None = None
        self._done = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy for another process has workers of its own."""
        return ImageWorkers, (self.processor, self._asked)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def map(self, requests: Sequence[Request]) -> Iterator[list[Any]]:
        """The answers, in order."""
        images = sum(len(request.items) * max(1, request.views) for request in requests)
        # workers that were asked for in so many words start at once
        if self._pool is None and self._count > 1 and (self._asked is not None or self._done + images >= _START_AFTER):
            self._pool = WorkerPool(answer, self.processor, self._count, {"OMP_NUM_THREADS": "1"})
        self._done += images
        if self._pool is None:
            return (answer(self.processor, request) for request in requests)
        return _explained(self._pool.map(requests))


def _explained(answers: Iterator[list[Any]]) -> Iterator[list[Any]]:
    try:
        yield from answers
    except WorkerError as error:
        raise DataError(f"an image could not be prepared: {error}") from error


def split_into(items: Sequence[Any], at_once: int = _AT_ONCE) -> list[slice]:
    """Parts of a list that are asked for one by one."""
    return [slice(i, i + at_once) for i in range(0, len(items), at_once)]


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
        requests = [Request("prepare", items[part]) for part in split_into(items)]
        return [row for rows in self._workers.map(requests) for row in rows]

    def views(self, images: ImageSet, indices: Sequence[int] | np.ndarray, n_views: int, seed: int) -> list[np.ndarray]:
        """Prepared views, `n_views` of each image, image by image."""
        items = [images.items[int(i)] for i in indices]
        keys = [int.from_bytes(images.digests[int(i)][:8], "big") for i in indices]
        requests = [Request("views", items[part], keys[part], n_views, seed) for part in split_into(items, max(1, 16 // n_views))]
        return [row for rows in self._workers.map(requests) for row in rows]
