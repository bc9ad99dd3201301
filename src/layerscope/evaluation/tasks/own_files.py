"""Tasks of one's own in a folder: `<data_dir>/<Task>/test.jsonl.gz` (or `.jsonl`), and `train` for
texts with classes.

A line is a JSON object with `text,label`, with `sentence1,sentence2,labels` (0 or 1), or with
`sentence1,sentence2,score`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from layerscope.data.readers import json_objects
from layerscope.errors import DataError
from layerscope.evaluation.tasks import LoadedTask, TaskSource
from layerscope.evaluation.tasks.mteb_tasks import is_mteb_task, make_task, needed_splits
from layerscope.extras import missing
from layerscope.models.source import files_sha256

__all__ = [
    "LAYOUTS",
    "SUFFIXES",
    "Columns",
    "Rows",
    "as_datasets",
    "code_labels",
    "own_task",
    "own_type",
    "read_columns",
    "read_rows",
    "task_folder",
]

SUFFIXES = (".jsonl.gz", ".jsonl")
LAYOUTS = {
    "STS": ("sentence1", "sentence2", "score"),
    "PairClassification": ("sentence1", "sentence2", "labels"),
    "Classification": ("text", "label"),
}

Rows = list[dict[str, Any]]
Columns = dict[str, list[Any]]


class OwnFiles(TaskSource):
    """Files of one's own, whose columns tell what kind of task they are."""

    name = "local"
    order = 30

    def names(self, data_dir: Path | None) -> Iterable[str]:
        return [] if data_dir is None else [path.name for path in data_dir.iterdir()]

    def find(self, name: str, data_dir: Path | None) -> str | None:
        folder = task_folder(name, data_dir)
        if folder is None or find_split(folder, "test") is None:
            return None
        if is_mteb_task(name):  # their layouts are another package's
            raise missing("task files")
        own_type(folder, LAYOUTS)
        return str(folder)

    def load(self, name: str, place: str) -> LoadedTask:
        folder = Path(place)
        task_type = own_type(folder, LAYOUTS)
        if task_type is None:
            raise DataError(f"{folder} no longer holds the data of task {name}. Put it back.")
        task = own_task(name, task_type, folder)
        splits = {}
        for split in needed_splits(task):
            file = find_split(folder, split)
            if file is None:
                raise DataError(f"{folder} has no {split}.jsonl.gz, which {name} needs.")
            splits[split] = read_columns(task, read_rows(file), file)
        notes = code_labels(task, splits)
        task.dataset = as_datasets(splits)
        task.data_loaded = True
        return LoadedTask(task, notes=notes)


SOURCE = OwnFiles()


def task_folder(name: str, data_dir: Path | None) -> Path | None:
    """Return a task's folder, if there is one; a name that contains a path is not a task's name."""
    if data_dir is None or Path(name).name != name or name in (".", ".."):
        return None
    folder = data_dir / name
    return folder if folder.is_dir() else None


def find_split(folder: Path, split: str) -> Path | None:
    """Return the file that holds a split."""
    files = (folder / f"{split}{suffix}" for suffix in SUFFIXES)
    return next((file for file in files if file.is_file()), None)


def own_task(name: str, task_type: str, folder: Path) -> Any:
    """Return a task without data whose version is the content of its folder."""
    version = files_sha256(path for path in folder.rglob("*") if path.is_file())
    description = f"A task of one's own, from {folder}"
    return make_task(name, task_type, description, str(folder), version[:40])


def own_type(folder: Path, layouts: Mapping[str, tuple[str, ...]]) -> str | None:
    """Return the type of one's own task, by the columns of its test split; None without one."""
    file = find_split(folder, "test")
    if file is None:
        return None
    columns = set(read_rows(file, 1)[0])
    for task_type, needed in layouts.items():
        if columns.issuperset(needed):
            return task_type
    valid = "; ".join(f"{kind}: {', '.join(needed)}" for kind, needed in layouts.items())
    raise DataError(
        f"{file} has the columns {', '.join(sorted(columns)) or 'none'}, which match no known "
        f"layout. Valid: {valid}."
    )


def read_rows(path: Path, limit: int | None = None) -> Rows:
    """Return the rows of a file in its order, which decides the texts that train a classifier."""
    rows = [row for _, row in islice(json_objects(path), limit)]
    if not rows:
        raise DataError(f"{path} holds no rows. It must have one JSON object per line.")
    return rows


def as_datasets(splits: Mapping[str, Columns]) -> Any:
    """Return the columns of splits as datasets."""
    from datasets import Dataset, DatasetDict

    return DatasetDict({split: Dataset.from_dict(columns) for split, columns in splits.items()})


def read_columns(task: Any, rows: Rows, path: Path) -> Columns:
    """Return the columns that mteb reads of texts with classes or of pairs, every value checked."""
    task_type = task.metadata.type
    valid: tuple[type, ...]
    if task_type == "Classification":
        texts = [task.input_column_name]
        gold = task.label_column_name
        valid = (str,) if isinstance(rows[0].get(gold), str) else (int,)
    elif task_type == "PairClassification":
        texts = [task.input1_column_name, task.input2_column_name]
        gold = task.label_column_name
        valid = (int,)
    else:
        texts = list(task.column_names)
        gold = "score"
        valid = (int, float)
    columns = {name: _read_column(rows, path, name, (str,)) for name in texts}
    values = _read_column(rows, path, gold, valid)
    if task_type == "PairClassification" and set(values) != {0, 1}:
        raise DataError(
            f"{path}: the pairs' {gold!r} are {sorted(set(values))[:5]}; there must be both 0 and "
            "1."
        )
    return {**columns, gold: [float(value) for value in values] if gold == "score" else values}


def _read_column(rows: Rows, path: Path, name: str, types: tuple[type, ...]) -> list[Any]:
    """Return one column, every value of the given types, and finite."""
    for number, row in enumerate(rows, 1):
        value = row.get(name)
        if not isinstance(value, types) or (isinstance(value, float) and not math.isfinite(value)):
            kind = {str: "a text", int: "a whole number", float: "a finite number"}[types[-1]]
            given = repr(row[name])[:60] if name in row else "missing"
            raise DataError(f"{path}, row {number}: {name!r} must be {kind}, but is {given}.")
    return [row[name] for row in rows]


def code_labels(task: Any, splits: Mapping[str, Columns]) -> dict[str, Any]:
    """Code two classes that are called something else as 0 and 1: mteb's average precision needs 1
    to be one of them. Return the codes, for the manifest."""
    if task.metadata.type != "Classification":
        return {}
    column = task.label_column_name
    labels = {label for columns in splits.values() for label in columns[column]}
    is_mixed = len({isinstance(label, str) for label in labels}) > 1
    if len(labels) != 2 or labels == {0, 1} or is_mixed:
        return {}
    codes = {label: code for code, label in enumerate(sorted(labels))}
    for columns in splits.values():
        columns[column] = [codes[label] for label in columns[column]]
    return {"label_codes": {str(label): code for label, code in codes.items()}}
