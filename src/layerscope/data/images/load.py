"""`load_images`: a set of images from whatever the user names: a catalogued set, a folder, a file, a hub dataset, Python."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.core.bounds import parquet_batches
from layerscope.data.hub import HubSpec, commit_of, hub_cache, load_hub_dataset, parse_hub_spec
from layerscope.data.images import sets
from layerscope.data.images.imageset import ImageSet, Item, ListedImages
from layerscope.data.images.pixels import ImageRequest, ImageWorkers, split_into
from layerscope.errors import DataError, UnknownNameError, clean_name, clean_names
from layerscope.progress import progress_bar

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
_MOST_CLASSES = 100_000
_IMAGE_COLUMNS, _LABEL_COLUMNS = ("image", "img", "images", "picture", "jpg", "png"), ("label", "labels", "class", "fine_label")
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

    Every image is decoded once as a check. One that cannot be decoded is left out, counted in `dropped` and named in
    `source["corrupt"]`.

    - `limit`: use the first N usable images (from a folder, in turn from each class, so that classes are balanced).
    - `shuffle`: draw those N images at random instead. The draw depends on `seed` and the images, not on their order.
    - `split`: for sets that have several.

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
) -> ListedImages:
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
        folders = ", ".join(sorted(p.name for p in path.iterdir() if p.is_dir())[:8]) or "no folders"
        raise DataError(f"{path} has no folder {part!r} for the split (it holds: {folders}).")
    return path / part


def _checked(
    found: ListedImages, limit: int | None, draw: tuple[int | None, int] | None, workers: int | None, progress: bool | None
) -> ImageSet:
    """Decode everything once; keep what can be decoded, up to a number of them."""
    usable: list[int] = []
    digests: list[bytes] = []
    corrupt: list[str] = []
    read = 0
    arrays = isinstance(found.items[0], np.ndarray)  # there is nothing to decode
    with ImageWorkers(None, 0 if arrays else workers) as pool, progress_bar(progress) as bar:
        bar.begin(f"{found.name}|images", len(found.items))
        for block in split_into(found.items, _AHEAD):
            items = [found.items[i] for i in range(*block.indices(len(found.items)))]
            answers = pool.map([ImageRequest("inspect", items[part]) for part in split_into(items)])
            for digest, complaint in (one for several in answers for one in several):
                if complaint is not None:
                    corrupt.append(f"{found.names[read]} ({complaint})")
                elif limit is None or len(usable) < limit:
                    usable.append(read)
                    digests.append(digest)
                read += 1
                bar.advance(1)
            if limit is not None and len(usable) >= limit:
                break
    if not usable:
        raise DataError(f"{found.where}: none of {read} images can be decoded, e.g. {corrupt[0]}.")
    if draw is not None:
        order = sorted(range(len(usable)), key=lambda i: (_draw_key(digests[i], draw[1]), i))[: draw[0]]
        usable, digests = [usable[i] for i in order], [digests[i] for i in order]
    source: dict[str, Any] = {"kind": found.kind, **found.facts, "read": read, "limit": limit if draw is None else draw[0]}
    source["duplicates"] = len(digests) - len(set(digests))
    if draw is not None:
        source["shuffle_seed"] = draw[1]
    dropped: dict[str, int] = dict(found.dropped)
    if corrupt:
        source["corrupt"] = corrupt[:_NAMED]
        dropped["corrupt"] = len(corrupt)
    labels = None if found.labels is None else np.asarray(found.labels, dtype=np.int64)[usable]
    return ImageSet(
        [found.items[i] for i in usable],
        tuple(found.names[i] for i in usable),
        tuple(digests),
        labels,
        clean_names(found.classes),
        clean_name(found.name),
        source,
        dropped,
    )


def _draw_key(digest: bytes, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}|".encode() + digest).digest()


def from_folder(folder: Path) -> ListedImages:
    """A folder of class folders, or of images alone; class by class in turn, so that the first N are balanced."""
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    by_class = [_files(folder / name) for name in classes]
    if not any(by_class):
        alone = _files(folder)
        if not alone:
            raise DataError(f"{folder} holds no images: no class folders with {', '.join(SUFFIXES[:4])} files, and none itself.")
        return ListedImages("folder", folder.name, str(folder), alone, [file.name for file in alone], facts={"path": str(folder)})
    filled = [(name, files) for name, files in zip(classes, by_class, strict=True) if files]
    longest = max(len(files) for _, files in filled)
    turns = [(i, label) for i in range(longest) for label, (_, files) in enumerate(filled) if i < len(files)]
    items = [filled[label][1][i] for i, label in turns]
    names = [str(file.relative_to(folder)) for file in items]
    class_names = tuple(name for name, _ in filled)
    return ListedImages(
        "folder", folder.name, str(folder), items, names, [label for _, label in turns], class_names, {"path": str(folder)}
    )


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()) if folder else []


def from_parquet(path: Path, column: str | None = None, label_column: str | None = None) -> ListedImages:
    """A parquet file with a column of encoded images (bytes, or a struct with `bytes`); the encoded bytes are kept in memory."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(path) as stored:
            table = pa.Table.from_batches(list(parquet_batches(stored, path)), stored.schema_arrow)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path} is not a readable parquet file: {error}") from error
    chosen = _choose(column, table.column_names, _IMAGE_COLUMNS, "image", str(path))
    values = _values(table[chosen], chosen, path)
    label = label_column or next((name for name in _LABEL_COLUMNS if name in table.column_names), None)
    named = _values(table[label], label, path) if label is not None and label in table.column_names else None
    labels, classes = _labels(named, label, str(path))
    facts = {"path": str(path), "column": chosen, "label_column": label if labels is not None else None}
    found = ListedImages("file", path.name, str(path), [], _rows(values), labels, classes, facts)
    return _without_missing(found, values, path.parent)


def _values(column: Any, name: str | None, path: Path) -> list[Any]:
    """The values of a parquet column."""
    import pyarrow as pa

    try:
        return column.to_pylist()
    except (pa.ArrowException, ValueError, OverflowError) as error:  # bytes that are no UTF-8, dates beyond the calendar
        raise DataError(f"{path}: column {name!r} holds values that cannot be read: {error}.") from error


def from_hub(spec: HubSpec, column: str | None, label_column: str | None, offline: bool) -> ListedImages:
    """A hub dataset, read as encoded bytes from the hub's own cache."""
    dataset = load_hub_dataset(spec, offline=offline)
    where = f"hub dataset {spec}"
    names = list(dataset.features)
    kinds = {name: type(feature).__name__ for name, feature in dataset.features.items()}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    chosen = _choose(column, names, images or _IMAGE_COLUMNS, "image", where)
    if kinds[chosen] == "Image":
        from datasets import Image

        dataset = dataset.cast_column(chosen, Image(decode=False))
    label = label_column or next((n for n in names if kinds[n] == "ClassLabel" or n in _LABEL_COLUMNS), None)
    labels, classes = _labels(list(dataset[label]) if label else None, label, where)
    if label and kinds.get(label) == "ClassLabel":
        classes = tuple(dataset.features[label].names)
        numbers = [int(k) for k in dataset[label]]
        labels = None if all(k == -1 for k in numbers) else numbers  # how the hub writes a split without labels
        _refuse_labels(labels or [], len(classes), label, where)
    values = list(dataset[chosen])
    info = dataset.info
    facts = {"repo": spec.repo, "revision": spec.revision, "commit": commit_of(dataset), "config": spec.config}
    facts |= {"split": spec.split, "column": chosen, "label_column": label}
    facts |= {"version": str(info.version) if info.version else None, "license": info.license or None}
    found = ListedImages("hub", str(spec), where, [], _rows(values), labels, classes, facts)
    return _without_missing(found, values, hub_cache())


def from_memory(images: Iterable[Any], labels: Iterable[int] | None) -> ListedImages:
    """Images given in Python: PIL images, uint8 arrays, encoded bytes or paths."""
    if isinstance(images, bytes | bytearray):
        raise DataError("images were given as bytes; give a list of images.")
    items: list[Item] = []
    for number, value in enumerate(images):
        items.append(_item(value, number))
    known = None if labels is None else [int(label) for label in labels]
    if known is not None and len(known) != len(items):
        raise DataError(f"{len(items)} images were given with {len(known)} labels; give one label for each image.")
    known, classes = (None, ()) if known is None else _numbered(known, "labels", "the given images")
    return ListedImages("memory", "images", "the given images", items, [f"image {i}" for i in range(len(items))], known, classes)


def _item(value: Any, number: int) -> Item:
    if isinstance(value, bytes):
        return value
    if isinstance(value, (str, os.PathLike)):
        return Path(value)
    if hasattr(value, "convert") and hasattr(value, "size"):  # a PIL image
        value = np.asarray(value.convert("L" if value.mode in ("1", "L") else "RGB"))
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and (value.ndim == 2 or value.shape[2:] == (3,)):
        return value
    shown = f"{value.dtype} array of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
    raise DataError(f"image {number} is a {shown}. Give PIL images, uint8 arrays (H, W) or (H, W, 3), encoded bytes or paths.")


def _choose(column: str | None, names: Sequence[str], usual: Sequence[str], what: str, where: str) -> str:
    if column is not None:
        if column not in names:
            raise DataError(f"{where} has no column {column!r}. It has: {', '.join(names)}.")
        return column
    found = next((name for name in usual if name in names), None)
    if found is None:
        raise DataError(f"{where}: which column holds the {what}s? It has {', '.join(names)}. Name one with column=.")
    return found


def _labels(values: list[Any] | None, column: str | None, where: str) -> tuple[list[int] | None, tuple[str, ...]]:
    if values is None:
        return None, ()
    if any(value is None for value in values):
        raise DataError(f"{where}: the labels in {column!r} are not all there. Leave out rows without one.")
    if all(isinstance(value, int) for value in values):
        return _numbered(values, column, where)
    classes = sorted({str(value) for value in values})
    numbers = {name: k for k, name in enumerate(classes)}
    return [numbers[str(value)] for value in values], tuple(classes)


def _numbered(values: list[int], column: str | None, where: str) -> tuple[list[int], tuple[str, ...]]:
    """Labels that count classes from 0. Numbers far beyond that name classes: those that occur are counted."""
    _refuse_labels(values, None, column, where)
    if max(values, default=0) < _MOST_CLASSES:
        return values, tuple(str(k) for k in range(max(values, default=-1) + 1))
    classes = sorted(set(values))
    numbers = {value: k for k, value in enumerate(classes)}
    return [numbers[value] for value in values], tuple(str(value) for value in classes)


def _refuse_labels(values: list[int], classes: int | None, column: str | None, where: str) -> None:
    wrong = next((value for value in values if value < 0 or (classes is not None and value >= classes)), None)
    if wrong is not None:
        raise DataError(
            f"{where}: {column!r} holds the label {wrong}; labels count classes from 0"
            + (f" to {classes - 1}" if classes is not None else "")
            + ". A negative one often marks an item without a label: leave such rows out."
        )


def _encoded(value: Any, inside: Path, where: str) -> bytes | Path | None:
    if isinstance(value, dict):
        if value.get("bytes") is not None:
            return value["bytes"]
        return _own_file(str(value["path"]), inside, where) if value.get("path") else None
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None


def _own_file(path: str, inside: Path, where: str) -> Path:
    """A file that a table names: only one in the table's own folder is opened, whatever path it gives."""
    try:
        file = (inside / path).resolve()
        if file.is_relative_to(inside.resolve()) and file.is_file():
            return file
    except (OSError, ValueError):
        pass
    raise DataError(
        f"{where} names the image {path!r} instead of holding it, and that is not a file in {inside}. "
        "Put the images beside the table, or their bytes into it."
    )


def _rows(values: list[Any]) -> list[str]:
    """What to call each: the file name a dataset gives, else its row."""
    names = []
    for number, value in enumerate(values):
        path = value.get("path") if isinstance(value, dict) else None
        names.append(f"row {number}" + (f" ({Path(path).name})" if path else ""))
    return names


def _without_missing(found: ListedImages, values: list[Any], inside: Path) -> ListedImages:
    """With the encoded images of a column, or those it names `inside` a folder; rows without one are left out and counted."""
    encoded = [(i, item) for i, value in enumerate(values) if (item := _encoded(value, inside, found.where)) is not None]
    missing = len(values) - len(encoded)
    if not encoded:
        raise DataError(f"{found.where}: the column holds no encoded images (bytes). Name another with column=.")
    return replace(
        found,
        items=[item for _, item in encoded],
        names=[found.names[i] for i, _ in encoded],
        labels=None if found.labels is None else [int(found.labels[i]) for i, _ in encoded],
        dropped={"null": missing} if missing else {},
    )
