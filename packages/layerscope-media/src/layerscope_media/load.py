"""Load images from a set in the catalogue, a folder, a file, a hub dataset or Python objects."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.data import HubSpec, dataset_facts, hub_cache, load_hub_dataset, locate
from layerscope.errors import (
    DataError,
    InvalidValueError,
    UnknownNameError,
    clean_name,
    clean_names,
)
from layerscope.progress import progress_bar
from layerscope_media import image_sets
from layerscope_media.imageset import ImageSet, Item
from layerscope_media.pixels import PixelReader

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
_MOST_CLASSES = 100_000
_IMAGE_COLUMNS = ("image", "img", "images", "picture", "jpg", "png")
_LABEL_COLUMNS = ("label", "labels", "class", "fine_label")
_NAMED = 20  # corrupt images whose names are kept
_AHEAD = 256


def load_images(
    spec: str | os.PathLike[str] | Iterable[Any],
    *,
    labels: Iterable[int] | None = None,
    limit: int | None = None,
    split: str | None = None,
    column: str | None = None,
    label_column: str | None = None,
    workers: int | None = None,
    progress: bool | None = False,
) -> ImageSet:
    """Load images from a set in the catalogue, a folder of class folders, a parquet file, a hub
    dataset, or Python objects.

    Every image is decoded once as a check. An image that cannot be decoded is left out, counted in
    `dropped` and named in `source["corrupt"]`.

    - `limit`: use the first N usable images. From a folder they are taken from each class in turn,
      so that classes are balanced.
    - `split`: the split of a set that has several.

    >>> load_images([np.zeros((4, 4), np.uint8)], labels=[0]).labels
    array([0])
    """
    if limit is not None and (isinstance(limit, bool) or limit < 1):
        raise InvalidValueError(
            f"limit is {limit!r}; it must be a whole number of images, 1 or more."
        )
    listed = _find(spec, labels, split, column, label_column)
    if not len(listed.items):
        raise DataError(f"{listed.where} holds no images.")
    return _checked(listed, limit, workers, progress)


def _find(
    spec: Any,
    labels: Iterable[int] | None,
    split: str | None,
    column: str | None,
    label_column: str | None,
) -> ImageSet:
    if not isinstance(spec, (str, os.PathLike)):
        return from_memory(spec, labels)
    if labels is not None:
        raise DataError("labels= works only with a list of images; leave it out for files.")
    place = locate(spec, image_sets.IMAGE_SETS, SUFFIXES)
    if isinstance(place, str):
        return image_sets.read_set(place, split)
    if isinstance(place, HubSpec):
        return from_hub(
            place if split is None else replace(place, split=split), column, label_column
        )
    if place is None:
        text = os.fspath(spec)
        if os.sep in text or Path(text).suffix:
            raise DataError(f"there is no folder or file {text!r}. {_FORMS}")
        raise UnknownNameError("image set", text, image_sets.IMAGE_SETS, _FORMS)
    if place.is_dir():
        return from_folder(place if split is None else _inside(place, split))
    if place.suffix.lower() != ".parquet":
        raise DataError(
            f"{place} is one file; give a folder of class folders, or a .parquet file with a "
            "column of images."
        )
    return from_parquet(place, column, label_column)


_FORMS = "Images can be a folder of class folders, a .parquet file, or a hub dataset org/name."


def _inside(path: Path, split: str) -> Path:
    if not (path / split).is_dir():
        folders = (
            ", ".join(sorted(p.name for p in path.iterdir() if p.is_dir())[:8]) or "no folders"
        )
        raise DataError(f"{path} has no folder {split!r} for the split (it holds: {folders}).")
    return path / split


def _checked(
    listed: ImageSet, limit: int | None, workers: int | None, progress: bool | None
) -> ImageSet:
    """Decode every image once and return those that can be decoded, at most `limit`."""
    usable: list[int] = []
    digests: list[bytes] = []
    corrupt: list[str] = []
    read = 0
    arrays = isinstance(listed.items[0], np.ndarray)  # which need no decoding
    with PixelReader(workers=0 if arrays else workers) as reader, progress_bar(progress) as bar:
        bar.begin(f"{listed.name}|images", len(listed.items))
        for start in range(0, len(listed.items), _AHEAD):
            for digest, complaint in reader.inspect(listed.items[start : start + _AHEAD]):
                if complaint is not None:
                    corrupt.append(f"{listed.names[read]} ({complaint})")
                elif limit is None or len(usable) < limit:
                    usable.append(read)
                    digests.append(digest)
                read += 1
                bar.advance(1)
            if limit is not None and len(usable) >= limit:
                break
    if not usable:
        raise DataError(f"{listed.where}: none of {read} images can be decoded, e.g. {corrupt[0]}.")
    source: dict[str, Any] = {
        **listed.source,
        "read": read,
        "limit": limit,
        "duplicates": len(digests) - len(set(digests)),
    }
    dropped = listed.dropped
    if corrupt:
        source["corrupt"] = corrupt[:_NAMED]
        dropped = {**dropped, "corrupt": len(corrupt)}
    return ImageSet(
        [listed.items[i] for i in usable],
        tuple(listed.names[i] for i in usable),
        tuple(digests),
        None if listed.labels is None else listed.labels[usable],
        clean_names(listed.classes),
        clean_name(listed.name),
        source,
        dropped,
    )


def from_folder(folder: Path) -> ImageSet:
    """List a folder of class folders, or of images alone, with classes in turn so that the first N
    are balanced."""
    source = {"kind": "folder", "path": str(folder)}
    classes = sorted(
        path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    by_class = [_files(folder / name) for name in classes]
    if not any(by_class):
        alone = _files(folder)
        if not alone:
            raise DataError(
                f"{folder} holds no images: neither it nor its class folders have "
                f"{', '.join(SUFFIXES[:4])} files."
            )
        return _listed(alone, [file.name for file in alone], folder.name, source)
    filled = [(name, files) for name, files in zip(classes, by_class, strict=True) if files]
    longest = max(len(files) for _, files in filled)
    turns = [
        (files[i], label)
        for i in range(longest)
        for label, (_, files) in enumerate(filled)
        if i < len(files)
    ]
    items = [file for file, _ in turns]
    names = [str(file.relative_to(folder)) for file in items]
    listed = _listed(items, names, folder.name, source, [label for _, label in turns])
    return replace(listed, classes=tuple(name for name, _ in filled))


def _listed(
    items: Sequence[Item],
    names: Sequence[str],
    name: str,
    source: dict[str, Any],
    labels: Sequence[int] | None = None,
) -> ImageSet:
    """Return a set of images that have not been decoded."""
    return ImageSet.of(items, labels, name=name, source=source, names=names, digests=())


def _files(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()
    )


def from_parquet(
    path: Path, column: str | None = None, label_column: str | None = None
) -> ImageSet:
    """Read a parquet file with a column of encoded images (bytes, or a struct with `bytes`); the
    encoded bytes stay in memory."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        table = parquet.read_table(path)
    except Exception as error:
        raise DataError(f"{path} is not a readable parquet file: {error}") from error

    def read(name: str) -> list[Any]:
        try:
            return table[name].to_pylist()
        except (pa.ArrowException, ValueError, OverflowError) as error:  # bytes that are not UTF-8
            raise DataError(
                f"{path}: column {name!r} holds values that cannot be read: {error}."
            ) from error

    empty = _listed([], [], path.name, {"kind": "file", "path": str(path)})
    return _from_table(
        empty, dict.fromkeys(table.column_names), read, column, label_column, path.parent
    )


def from_hub(spec: HubSpec, column: str | None, label_column: str | None) -> ImageSet:
    """Read a hub dataset as encoded bytes from the hub's cache."""
    dataset = load_hub_dataset(spec)
    features = dict(dataset.features)

    def read(name: str) -> list[Any]:
        if type(features[name]).__name__ != "Image":
            return list(dataset[name])
        from datasets import Image

        return list(dataset.cast_column(name, Image(decode=False))[name])

    empty = _listed([], [], str(spec), {"kind": "hub", **dataset_facts(spec, dataset)})
    return _from_table(empty, features, read, column, label_column, hub_cache())


def _from_table(
    empty: ImageSet,
    columns: dict[str, Any],
    read: Callable[[str], list[Any]],
    column: str | None,
    label_column: str | None,
    inside: Path,
) -> ImageSet:
    """Add the encoded images of a column to an empty set, or the files `inside` a folder that the
    column names; rows without an image are left out and counted.

    `columns` maps each column to its feature in the `datasets` library, if it has one.
    """
    where = empty.where
    kinds = {name: type(feature).__name__ for name, feature in columns.items()}
    chosen = _choose(
        column,
        kinds,
        [name for name, kind in kinds.items() if kind == "Image"] or _IMAGE_COLUMNS,
        where,
    )
    default = next((name for name, kind in kinds.items() if kind == "ClassLabel"), None)
    default = default or next((name for name in _LABEL_COLUMNS if name in kinds), None)
    label = default if label_column is None else _choose(label_column, kinds, (), where)
    labels: list[int] | None = None
    classes: tuple[str, ...] = ()
    if label is not None:
        names = columns[label].names if kinds[label] == "ClassLabel" else None
        labels, classes = _labels(read(label), label, where, names)
    values = read(chosen)
    encoded = [
        (i, item)
        for i, value in enumerate(values)
        if (item := _encoded(value, inside, where)) is not None
    ]
    if not encoded:
        raise DataError(
            f"{where}: the column {chosen!r} holds no encoded images (bytes). Name another with "
            "column=."
        )
    missing = len(values) - len(encoded)
    return replace(
        empty,
        items=[item for _, item in encoded],
        names=[_row_name(i, values[i]) for i, _ in encoded],
        labels=None
        if labels is None
        else np.array([labels[i] for i, _ in encoded], dtype=np.int64),
        classes=classes,
        source={
            **empty.source,
            "column": chosen,
            "label_column": None if labels is None else label,
        },
        dropped={"null": missing} if missing else {},
    )


def from_memory(images: Iterable[Any], labels: Iterable[int] | None) -> ImageSet:
    """Return a set of PIL images, uint8 arrays, encoded bytes or paths."""
    if isinstance(images, bytes | bytearray):
        raise DataError("images were given as bytes; give a list of images.")
    items = [_item(value, number) for number, value in enumerate(images)]
    numbers: list[int] | None = None
    classes: tuple[str, ...] = ()
    if labels is not None:
        numbers, classes = _numbered([int(k) for k in labels], "labels", "the given images")
    return ImageSet.of(items, numbers, classes, "images", {"kind": "memory"}, digests=())


def _item(value: Any, number: int) -> Item:
    if isinstance(value, bytes):
        return value
    if isinstance(value, (str, os.PathLike)):
        return Path(value)
    if hasattr(value, "convert") and hasattr(value, "size"):  # a PIL image
        value = np.asarray(value.convert("L" if value.mode in ("1", "L") else "RGB"))
    shown = type(value).__name__
    if isinstance(value, np.ndarray):
        if value.dtype == np.uint8 and (value.ndim == 2 or value.shape[2:] == (3,)):
            return value
        shown = f"{value.dtype} array of shape {value.shape}"
    raise DataError(
        f"image {number} is a {shown}. Give PIL images, uint8 arrays (H, W) or (H, W, 3), encoded "
        "bytes or paths."
    )


def _choose(
    column: str | None, names: Collection[str], candidates: Iterable[str], where: str
) -> str:
    if column is not None:
        if column not in names:
            raise DataError(f"{where} has no column {column!r}. It has: {', '.join(names)}.")
        return column
    match = next((name for name in candidates if name in names), None)
    if match is None:
        raise DataError(
            f"{where} has no column with a usual name for images. It has {', '.join(names)}. Name "
            "one with column=."
        )
    return match


def _labels(
    values: list[Any], column: str, where: str, names: Sequence[str] | None = None
) -> tuple[list[int] | None, tuple[str, ...]]:
    """Return labels as numbers of classes, and the classes, which may have `names`."""
    # the hub writes -1 in a split without labels
    if all(value == -1 for value in values):
        return None, tuple(names or ())
    if any(value is None for value in values):
        raise DataError(f"{where}: some rows have no label in {column!r}. Leave out these rows.")
    if names is not None:
        _refuse_labels(values, len(names), column, where)
        return values, tuple(names)
    if all(isinstance(value, int) for value in values):
        return _numbered(values, column, where)
    classes = sorted({str(value) for value in values})
    numbers = {name: k for k, name in enumerate(classes)}
    return [numbers[str(value)] for value in values], tuple(classes)


def _numbered(
    values: list[int], column: str | None, where: str
) -> tuple[list[int], tuple[str, ...]]:
    """Return labels from 0 and their classes; very large numbers are names of classes, which are
    numbered as they occur."""
    _refuse_labels(values, None, column, where)
    if max(values, default=0) < _MOST_CLASSES:
        return values, tuple(str(k) for k in range(max(values, default=-1) + 1))
    classes = sorted(set(values))
    numbers = {value: k for k, value in enumerate(classes)}
    return [numbers[value] for value in values], tuple(str(value) for value in classes)


def _refuse_labels(values: list[int], classes: int | None, column: str | None, where: str) -> None:
    highest = float("inf") if classes is None else classes - 1
    wrong = next((value for value in values if not 0 <= value <= highest), None)
    if wrong is not None:
        limit = "" if classes is None else f" to {highest}"
        raise DataError(
            f"{where}: {column!r} holds the label {wrong}; labels are numbers from 0{limit}. A "
            "negative one often marks a row without a label: leave such rows out."
        )


def _encoded(value: Any, inside: Path, where: str) -> bytes | Path | None:
    if isinstance(value, dict):
        if value.get("bytes") is not None:
            return value["bytes"]
        if value.get("path"):
            return _own_file(str(value["path"]), inside, where)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return None


def _own_file(path: str, inside: Path, where: str) -> Path:
    """Return the file that a table names; only files in the table's folder are allowed."""
    try:
        file = (inside / path).resolve()
        if file.is_relative_to(inside.resolve()) and file.is_file():
            return file
    except (OSError, ValueError):
        pass
    raise DataError(
        f"{where} names the image {path!r}, which is not a file in {inside}. Put the images into "
        "this folder, or their bytes into the table."
    )


def _row_name(number: int, value: Any) -> str:
    """Return the name of an image: its row, and the file name if the dataset has one."""
    path = value.get("path") if isinstance(value, dict) else None
    if path:
        return f"row {number} ({Path(path).name})"
    return f"row {number}"
