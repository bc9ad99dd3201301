"""Where images come from: folders, parquet files, hub datasets, Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.data.hub import HubSpec, load_hub_dataset
from layerscope.data.images.decoding import Item
from layerscope.data.images.found import Found
from layerscope.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
_IMAGE_COLUMNS, _LABEL_COLUMNS = ("image", "img", "images", "picture", "jpg", "png"), ("label", "labels", "class", "fine_label")


def from_folder(folder: Path) -> Found:
    """A folder of class folders, or of images alone; class by class in turn, so that the first N are balanced."""
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    by_class = [_files(folder / name) for name in classes]
    if not any(by_class):
        alone = _files(folder)
        if not alone:
            raise DataError(f"{folder} holds no images: no class folders with {', '.join(SUFFIXES[:4])} files, and none itself.")
        return Found("folder", folder.name, str(folder), alone, [file.name for file in alone], facts={"path": str(folder)})
    held = [(name, files) for name, files in zip(classes, by_class, strict=True) if files]
    turns = [(i, label) for i in range(max(len(files) for _, files in held)) for label, (_, f) in enumerate(held) if i < len(f)]
    items = [held[label][1][i] for i, label in turns]
    names = [str(file.relative_to(folder)) for file in items]
    kept = tuple(name for name, _ in held)
    return Found("folder", folder.name, str(folder), items, names, [label for _, label in turns], kept, {"path": str(folder)})


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()) if folder else []


def from_parquet(path: Path, column: str | None = None, label_column: str | None = None) -> Found:
    """A parquet file with a column of encoded images (bytes, or a struct with `bytes`); the encoded bytes are kept in memory."""
    import pyarrow.parquet as parquet

    try:
        table = parquet.read_table(path)
    except Exception as error:
        raise DataError(f"{path} is not a readable parquet file: {error}") from error
    chosen = _choose(column, table.column_names, _IMAGE_COLUMNS, "image", str(path))
    values = table[chosen].to_pylist()
    label = label_column or next((name for name in _LABEL_COLUMNS if name in table.column_names), None)
    labels, classes = _labels(table[label].to_pylist() if label in table.column_names else None, label, str(path))
    facts = {"path": str(path), "column": chosen, "label_column": label if labels is not None else None}
    return _without_missing(Found("file", path.name, str(path), [], _rows(values), labels, classes, facts), values)


def from_hub(spec: HubSpec, column: str | None, label_column: str | None, offline: bool) -> Found:
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
        labels = [int(k) for k in dataset[label]]
    values = list(dataset[chosen])
    info = dataset.info
    facts = {"repo": spec.repo, "config": spec.config, "split": spec.split, "column": chosen, "label_column": label}
    facts |= {"version": str(info.version) if info.version else None, "licence": info.license or None}
    return _without_missing(Found("hub", str(spec), where, [], _rows(values), labels, classes, facts), values)


def from_memory(images: Iterable[Any], labels: Iterable[int] | None) -> Found:
    """Images given in Python: PIL images, uint8 arrays, encoded bytes or paths."""
    if isinstance(images, bytes | bytearray):
        raise DataError("images were given as bytes; give a list of images.")
    items: list[Item] = []
    for number, value in enumerate(images):
        items.append(_item(value, number))
    known = None if labels is None else [int(label) for label in labels]
    if known is not None and len(known) != len(items):
        raise DataError(f"{len(items)} images were given with {len(known)} labels; give one label for each image.")
    classes = () if known is None else tuple(str(k) for k in range(max(known, default=-1) + 1))
    return Found("memory", "images", "the given images", items, [f"image {i}" for i in range(len(items))], known, classes)


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
        return values, tuple(str(k) for k in range(max(values, default=-1) + 1))
    classes = sorted({str(value) for value in values})
    numbers = {name: k for k, name in enumerate(classes)}
    return [numbers[str(value)] for value in values], tuple(classes)


def _encoded(value: Any) -> bytes | Path | None:
    if isinstance(value, dict):
        if value.get("bytes") is not None:
            return value["bytes"]
        return Path(value["path"]) if value.get("path") else None
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None


def _rows(values: list[Any]) -> list[str]:
    """What to call each: the file name a dataset gives, else its row."""
    names = []
    for number, value in enumerate(values):
        path = value.get("path") if isinstance(value, dict) else None
        names.append(f"row {number}" + (f" ({Path(path).name})" if path else ""))
    return names


def _without_missing(found: Found, values: list[Any]) -> Found:
    """With the encoded images of a column; rows without one are left out and counted."""
    encoded = [(i, item) for i, value in enumerate(values) if (item := _encoded(value)) is not None]
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
