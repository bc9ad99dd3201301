"""`load_images`: a set of images from whatever the user names."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.data.hub import parse_hub_spec
from layerscope.data.images import sets
from layerscope.data.images.found import Found
from layerscope.data.images.imageset import ImageSet
from layerscope.data.images.sources import from_folder, from_hub, from_memory, from_parquet
from layerscope.data.images.work import Request
from layerscope.data.images.workers import ImageWorkers, split
from layerscope.errors import DataError, LayerscopeError, UnknownNameError
from layerscope.progress import progress_bar

_NAMED = 20  # corrupt images that are named one by one
_AHEAD = 256


def load_images(
    spec: str | os.PathLike[str] | Iterable[Any],
    *,
    labels: Iterable[int] | None = None,
    limit: int | None = None,
    split: str | None = None,
    column: str | None = None,
    label_column: str | None = None,
    shuffle: bool = False,
    seed: int = 0,
    offline: bool = False,
    workers: int | None = None,
    progress: bool | None = False,
) -> ImageSet:
    """Images from a catalogued set, a folder of class folders, a parquet file, a hub dataset, or Python.

    Every image is decoded once to see that it can be: one that cannot is left out, counted in `dropped` and named in
    `source["corrupt"]`. `limit` takes the first N usable ones (of a folder, class by class in turn, so that they are balanced);
    with `shuffle` N are drawn by `seed` and content, whatever their order. `split` is for sets that have several.

    >>> load_images([np.zeros((4, 4), np.uint8)], labels=[0]).labels
    array([0])
    """
    if limit is not None and (isinstance(limit, bool) or limit < 1):
        raise DataError(f"limit is {limit!r}; it must be a whole number of images, 1 or more.")
    found = _find(spec, labels, split, column, label_column, offline)
    if not len(found.items):
        raise DataError(f"{found.where} holds no images.")
    return _checked(found, None if shuffle else limit, (limit, seed) if shuffle else None, workers, progress)


def _find(
    spec: Any, labels: Iterable[int] | None, part: str | None, column: str | None, label_column: str | None, offline: bool
) -> Found:
    if not isinstance(spec, (str, os.PathLike)):
        return from_memory(spec, labels)
    if labels is not None:
        raise DataError("labels go with images given in Python; a folder or a dataset has its own.")
    text = os.fspath(spec)
    if isinstance(spec, str) and text in sets.image_sets():
        return sets.read_set(text, part, offline)
    path = Path(text).expanduser()
    if not text.startswith("hub:") and path.is_dir():
        return from_folder(path if part is None else _inside(path, part))
    if path.is_file():
        if path.suffix.lower() != ".parquet":
            raise DataError(f"{path} is one file; give a folder of class folders, or a .parquet file with a column of images.")
        return from_parquet(path, column, label_column)
    hub = parse_hub_spec(text.removeprefix("hub:"))
    if (hub is not None and not path.parent.is_dir()) or text.startswith("hub:"):
        if hub is None:
            raise DataError(f"{text!r} is not a hub dataset. Write hub:org/name, hub:org/name:config or with /split.")
        return from_hub(hub if part is None else replace(hub, split=part), column, label_column, offline)
    if os.sep in text or path.suffix:
        raise DataError(f"there is no folder or file {text!r}. {_FORMS}")
    raise UnknownNameError("image set", text, sets.image_sets(), _FORMS)


_FORMS = "Images can be a folder of class folders, a .parquet file, or a hub dataset org/name."


def _inside(path: Path, part: str) -> Path:
    if not (path / part).is_dir():
        held = ", ".join(sorted(p.name for p in path.iterdir() if p.is_dir())[:8]) or "no folders"
        raise DataError(f"{path} has no folder {part!r} for the split (it holds: {held}).")
    return path / part


def _checked(
    found: Found, limit: int | None, draw: tuple[int | None, int] | None, workers: int | None, progress: bool | None
) -> ImageSet:
    """Decode everything once; keep what can be decoded, up to a number of them."""
    kept: list[int] = []
    digests: list[bytes] = []
    corrupt: list[str] = []
    read = 0
    arrays = isinstance(found.items[0], np.ndarray)  # there is nothing to decode
    with ImageWorkers(None, 0 if arrays else workers) as pool, progress_bar(progress) as bar:
        bar.begin(f"{found.name}|images", len(found.items))
        for block in split(found.items, _AHEAD):
            items = [found.items[i] for i in range(*block.indices(len(found.items)))]
            answers = pool.map([Request("inspect", items[part]) for part in split(items)])
            for digest, complaint in (one for several in answers for one in several):
                if complaint is not None:
                    corrupt.append(f"{found.names[read]} ({complaint})")
                elif limit is None or len(kept) < limit:
                    kept.append(read)
                    digests.append(digest)
                read += 1
                bar.advance(1)
            if limit is not None and len(kept) >= limit:
                break
    if not kept:
        raise DataError(f"{found.where}: none of {read} images can be decoded, e.g. {corrupt[0]}.")
    if draw is not None:
        order = sorted(range(len(kept)), key=lambda i: (_draw_key(digests[i], draw[1]), i))[: draw[0]]
        kept, digests = [kept[i] for i in order], [digests[i] for i in order]
    source: dict[str, Any] = {"kind": found.kind, **found.facts, "read": read, "limit": limit if draw is None else draw[0]}
    source["duplicates"] = len(digests) - len(set(digests))
    if draw is not None:
        source["shuffle_seed"] = draw[1]
    dropped: dict[str, int] = dict(found.dropped)
    if corrupt:
        source["corrupt"] = corrupt[:_NAMED]
        dropped["corrupt"] = len(corrupt)
    labels = None if found.labels is None else np.asarray(found.labels, dtype=np.int64)[kept]
    return ImageSet(
        [found.items[i] for i in kept], tuple(found.names[i] for i in kept), tuple(digests), labels, found.classes, found.name,
        source, dropped,
    )  # fmt: skip


def _draw_key(digest: bytes, seed: int) -> bytes:
    import hashlib

    return hashlib.sha256(f"{seed}|".encode() + digest).digest()


def open_images(images: Any, offline: bool = False, limit: int | None = None, split: str | None = None) -> ImageSet:
    """An image set from whatever the user gave."""
    if isinstance(images, ImageSet):
        if limit is not None or split is not None:
            raise LayerscopeError("limit and split go with images that are yet to be read: pass them to load_images instead.")
        return images
    return load_images(images, offline=offline, limit=limit, split=split, progress=None)
