"""`load_images`: a set of images from whatever the user names: a catalogued set, a folder, a file,
a hub dataset, Python."""

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
_IMAGE_COLUMNS, _LABEL_COLUMNS = (
    ("image", "img", "images", "picture", "jpg", "png"),
    ("label", "labels", "class", "fine_label"),
)
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
    workers: int | None = None,
    progress: bool | None = False,
) -> ImageSet:
    """Images from a catalogued set, a folder of class folders, a parquet file, a hub dataset, or
    Python.

    Every image is decoded once as a check. One that cannot be decoded is left out, counted in
    `dropped` and named in `source["corrupt"]`.

    - `limit`: use the first N usable images (from a folder, in turn from each class, so that
      classes are balanced).
    - `split`: for sets that have several.

    >>> load_images([np.zeros((4, 4), np.uint8)], labels=[0]).labels
    array([0])
    """
    if limit is not None and (isinstance(limit, bool) or limit < 1):
        raise InvalidValueError(
            f"limit is {limit!r}; it must be a whole number of images, 1 or more."
        )
    found = _find(spec, labels, split, column, label_column)
    if not len(found.items):
        raise DataError(f"{found.where} holds no images.")
    return _checked(found, limit, workers, progress)


def _find(
    spec: Any,
    labels: Iterable[int] | None,
    part: str | None,
    column: str | None,
    label_column: str | None,
) -> ImageSet:
    if not isinstance(spec, (str, os.PathLike)):
        return from_memory(spec, labels)
    if labels is not None:
        raise DataError("labels go with images given in Python; a folder or a dataset has its own.")
    found = locate(spec, image_sets.IMAGE_SETS, SUFFIXES)
    if isinstance(found, str):
        return image_sets.read_set(found, part)
    if isinstance(found, HubSpec):
        return from_hub(found if part is None else replace(found, split=part), column, label_column)
    if found is None:
        text = os.fspath(spec)
        if os.sep in text or Path(text).suffix:
            raise DataError(f"there is no folder or file {text!r}. {_FORMS}")
        raise UnknownNameError("image set", text, image_sets.IMAGE_SETS, _FORMS)
    if found.is_dir():
        return from_folder(found if part is None else _inside(found, part))
    if found.suffix.lower() != ".parquet":
        raise DataError(
            f"{found} is one file; give a folder of class folders, or a .parquet file with a column of images."
        )
    return from_parquet(found, column, label_column)


_FORMS = "Images can be a folder of class folders, a .parquet file, or a hub dataset org/name."


def _inside(path: Path, part: str) -> Path:
    if not (path / part).is_dir():
        folders = (
            ", ".join(sorted(p.name for p in path.iterdir() if p.is_dir())[:8]) or "no folders"
        )
        raise DataError(f"{path} has no folder {part!r} for the split (it holds: {folders}).")
    return path / part


def _checked(
    found: ImageSet, limit: int | None, workers: int | None, progress: bool | None
) -> ImageSet:
    """Decode everything once; keep what can be decoded, up to a number of them."""
    usable: list[int] = []
    digests: list[bytes] = []
    corrupt: list[str] = []
    read = 0
    arrays = isinstance(found.items[0], np.ndarray)  # there is nothing to decode
    with PixelReader(workers=0 if arrays else workers) as reader, progress_bar(progress) as bar:
        bar.begin(f"{found.name}|images", len(found.items))
        for start in range(0, len(found.items), _AHEAD):
            for digest, complaint in reader.inspect(found.items[start : start + _AHEAD]):
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
    source = {
        **found.source,
        "read": read,
        "limit": limit,
        "duplicates": len(digests) - len(set(digests)),
    }
    return ImageSet(
        [found.items[i] for i in usable],
        tuple(found.names[i] for i in usable),
        tuple(digests),
        None if found.labels is None else found.labels[usable],
        clean_names(found.classes),
        clean_name(found.name),
        {**source, "corrupt": corrupt[:_NAMED]} if corrupt else source,
        {**found.dropped, "corrupt": len(corrupt)} if corrupt else found.dropped,
    )


def from_folder(folder: Path) -> ImageSet:
    """A folder of class folders, or of images alone; class by class in turn, so that the first N
    are balanced."""
    classes = sorted(
        path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    by_class = [_files(folder / name) for name in classes]
    if not any(by_class):
        alone = _files(folder)
        if not alone:
            raise DataError(
                f"{folder} holds no images: no class folders with {', '.join(SUFFIXES[:4])} files, and none itself."
            )
        return _listed(
            alone,
            [file.name for file in alone],
            folder.name,
            {"kind": "folder", "path": str(folder)},
        )
    filled = [(name, files) for name, files in zip(classes, by_class, strict=True) if files]
    longest = max(len(files) for _, files in filled)
    turns = [
        (i, label)
        for i in range(longest)
        for label, (_, files) in enumerate(filled)
        if i < len(files)
    ]
    items = [filled[label][1][i] for i, label in turns]
    names = [str(file.relative_to(folder)) for file in items]
    listed = _listed(
        items,
        names,
        folder.name,
        {"kind": "folder", "path": str(folder)},
        [label for _, label in turns],
    )
    return replace(listed, classes=tuple(name for name, _ in filled))


def _listed(
    items: Sequence[Item],
    names: Sequence[str],
    name: str,
    source: dict[str, Any],
    labels: Sequence[int] | None = None,
) -> ImageSet:
    """Images that have not been decoded."""
    return ImageSet.of(items, labels, name=name, source=source, names=names, digests=())


def _files(folder: Path) -> list[Path]:
    return (
        sorted(
            path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()
        )
        if folder
        else []
    )


def from_parquet(
    path: Path, column: str | None = None, label_column: str | None = None
) -> ImageSet:
    """A parquet file with a column of encoded images (bytes, or a struct with `bytes`); the encoded
    bytes are kept in memory."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        table = parquet.read_table(path)
    except Exception as error:
        raise DataError(f"{path} is not a readable parquet file: {error}") from error

    def read(name: str) -> list[Any]:
        try:
            return table[name].to_pylist()
        except (
            pa.ArrowException,
            ValueError,
            OverflowError,
        ) as error:  # bytes that are not UTF-8, dates beyond the calendar
            raise DataError(
                f"{path}: column {name!r} holds values that cannot be read: {error}."
            ) from error

    found = _listed([], [], path.name, {"kind": "file", "path": str(path)})
    return _from_table(
        found, dict.fromkeys(table.column_names), read, column, label_column, path.parent
    )


def from_hub(spec: HubSpec, column: str | None, label_column: str | None) -> ImageSet:
    """A hub dataset, read as encoded bytes from the hub's own cache."""
    dataset = load_hub_dataset(spec)
    features = dict(dataset.features)

    def read(name: str) -> list[Any]:
        if type(features[name]).__name__ != "Image":
            return list(dataset[name])
        from datasets import Image

        return list(dataset.cast_column(name, Image(decode=False))[name])

    found = _listed([], [], str(spec), {"kind": "hub", **dataset_facts(spec, dataset)})
    return _from_table(found, features, read, column, label_column, hub_cache())


def _from_table(
    found: ImageSet,
    columns: dict[str, Any],
    read: Callable[[str], list[Any]],
    column: str | None,
    label_column: str | None,
    inside: Path,
) -> ImageSet:
    """The encoded images of a column, or those it names `inside` a folder; rows without one are
    left out and counted.

    `columns` gives each column's feature where the hub's library has one.
    """
    where = found.where
    kinds = {name: type(feature).__name__ for name, feature in columns.items()}
    chosen = _choose(
        column,
        kinds,
        [name for name, kind in kinds.items() if kind == "Image"] or _IMAGE_COLUMNS,
        where,
    )
    usual = next((name for name, kind in kinds.items() if kind == "ClassLabel"), None)
    usual = usual or next((name for name in _LABEL_COLUMNS if name in kinds), None)
    label = usual if label_column is None else _choose(label_column, kinds, (), where)
    names = columns[label].names if label is not None and kinds[label] == "ClassLabel" else None
    labels, classes = _labels(None if label is None else read(label), label, where, names)
    values = read(chosen)
    encoded = [
        (i, item)
        for i, value in enumerate(values)
        if (item := _encoded(value, inside, where)) is not None
    ]
    if not encoded:
        raise DataError(
            f"{where}: the column holds no encoded images (bytes). Name another with column=."
        )
    missing = len(values) - len(encoded)
    return replace(
        found,
        items=[item for _, item in encoded],
        names=[_row_name(i, values[i]) for i, _ in encoded],
        labels=None
        if labels is None
        else np.array([labels[i] for i, _ in encoded], dtype=np.int64),
        classes=classes,
        source={
            **found.source,
            "column": chosen,
            "label_column": None if labels is None else label,
        },
        dropped={"null": missing} if missing else {},
    )


def from_memory(images: Iterable[Any], labels: Iterable[int] | None) -> ImageSet:
    """Images given in Python: PIL images, uint8 arrays, encoded bytes or paths."""
    if isinstance(images, bytes | bytearray):
        raise DataError("images were given as bytes; give a list of images.")
    items = [_item(value, number) for number, value in enumerate(images)]
    known, classes = (
        (None, ())
        if labels is None
        else _numbered([int(k) for k in labels], "labels", "the given images")
    )
    return ImageSet.of(items, known, classes, "images", {"kind": "memory"}, digests=())


def _item(value: Any, number: int) -> Item:
    if isinstance(value, bytes):
        return value
    if isinstance(value, (str, os.PathLike)):
        return Path(value)
    if hasattr(value, "convert") and hasattr(value, "size"):  # a PIL image
        value = np.asarray(value.convert("L" if value.mode in ("1", "L") else "RGB"))
    if (
        isinstance(value, np.ndarray)
        and value.dtype == np.uint8
        and (value.ndim == 2 or value.shape[2:] == (3,))
    ):
        return value
    shown = (
        f"{value.dtype} array of shape {value.shape}"
        if isinstance(value, np.ndarray)
        else type(value).__name__
    )
    raise DataError(
        f"image {number} is a {shown}. Give PIL images, uint8 arrays (H, W) or (H, W, 3), encoded bytes or paths."
    )


def _choose(column: str | None, names: Collection[str], usual: Iterable[str], where: str) -> str:
    if column is not None:
        if column not in names:
            raise DataError(f"{where} has no column {column!r}. It has: {', '.join(names)}.")
        return column
    found = next((name for name in usual if name in names), None)
    if found is None:
        raise DataError(
            f"{where}: which column holds the images? It has {', '.join(names)}. Name one with column=."
        )
    return found


def _labels(
    values: list[Any] | None, column: str | None, where: str, names: Sequence[str] | None = None
) -> tuple[list[int] | None, tuple[str, ...]]:
    """Labels as numbers of classes, which may have `names`."""
    if values is None or all(
        value == -1 for value in values
    ):  # how the hub writes a split without labels
        return None, tuple(names or ())
    if any(value is None for value in values):
        raise DataError(
            f"{where}: the labels in {column!r} are not all there. Leave out rows without one."
        )
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
    """Labels that count classes from 0. Numbers far beyond that name classes: those that occur are
    counted."""
    _refuse_labels(values, None, column, where)
    if max(values, default=0) < _MOST_CLASSES:
        return values, tuple(str(k) for k in range(max(values, default=-1) + 1))
    classes = sorted(set(values))
    numbers = {value: k for k, value in enumerate(classes)}
    return [numbers[value] for value in values], tuple(str(value) for value in classes)


def _refuse_labels(values: list[int], classes: int | None, column: str | None, where: str) -> None:
    wrong = next(
        (value for value in values if value < 0 or (classes is not None and value >= classes)), None
    )
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
    """A file that a table names: only one in the table's own folder is opened, whatever path it
    gives."""
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


def _row_name(number: int, value: Any) -> str:
    """What to call an image: the file name a dataset gives, else its row."""
    path = value.get("path") if isinstance(value, dict) else None
    return f"row {number}" + (f" ({Path(path).name})" if path else "")
