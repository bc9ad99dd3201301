"""Tasks of one's own in a folder: `<data_dir>/<Task>/test.jsonl.gz` (or `.jsonl`), and `train` for
texts with classes.

A line is a JSON object with `text,label`, with `sentence1,sentence2,labels` (0 or 1), or with
`sentence1,sentence2,score`. Another package may read further layouts: a module behind an entry
point of the group `layerscope.tasks` then has them as `FOLDERS`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from layerscope.core.files import sha256_of
from layerscope.core.plugins import entry_points
from layerscope.data.readers import json_objects
from layerscope.errors import DataError
from layerscope.evaluation.tasks.info import is_mteb_task, task_class, text_task

__all__ = [
    "COLUMNS",
    "LAYOUTS",
    "NOT_MTEB",
    "SUFFIXES",
    "Columns",
    "Notes",
    "Rows",
    "TaskFolders",
    "as_datasets",
    "code_labels",
    "own_class",
    "own_type",
    "read_rows",
    "vanished",
]

SUFFIXES = (".jsonl.gz", ".jsonl")
NO_ROWS = "{} holds no rows. It must have one JSON object per line."
NOT_MTEB = "not one of MTEB's tasks"
LAYOUTS = {
    "STS": ("sentence1", "sentence2", "score"),
    "PairClassification": ("sentence1", "sentence2", "labels"),
    "Classification": ("text", "label"),
}

Rows = list[dict[str, Any]]
Columns = dict[str, list[Any]]
Notes = dict[str, Any]


class TaskFolders(Protocol):
    """Reads tasks from folders of files."""

    def find(self, name: str, folder: Path) -> bool:
        """Return whether a folder holds a task that is read here; an error where its files are
        wrong."""

    def load(self, name: str, folder: Path) -> tuple[Any, Notes]:
        """Return mteb's task object with the data, and what was done to the rows on the way."""

    def exact(self, task: Any) -> tuple[bool | None, str]:
        """Return whether a loaded task's data are MTEB's own split (None: not known), and why."""


def folder_readers() -> list[TaskFolders]:
    """Return what reads tasks from folders: other packages first, then files of one's own."""
    others = [getattr(point.load(), "FOLDERS", None) for point in entry_points("layerscope.tasks")]
    return [*(reader for reader in others if reader is not None), OwnTasks()]


class OwnTasks:
    """Files of one's own, whose columns say what kind of task they are."""

    def find(self, name: str, folder: Path) -> bool:
        """Return whether a folder holds a test split; mteb's tasks have layouts of their own."""
        return not is_mteb_task(name) and own_type(folder, LAYOUTS) is not None

    def load(self, name: str, folder: Path) -> tuple[Any, Notes]:
        """Read the splits into a task of their own."""
        task_type = own_type(folder, LAYOUTS)
        if task_type is None:
            raise vanished(name, folder)
        needed = text_task(name, task_type).needed_splits
        files = {split: find_split(folder, split) for split in needed}
        missing = [split for split, file in files.items() if file is None]
        if missing:
            raise DataError(f"{folder} has no {missing[0]}.jsonl.gz, which {name} needs.")
        found = {split: file for split, file in files.items() if file is not None}
        notes: Notes = {}

        def build(task: Any) -> Any:
            splits = {
                split: COLUMNS[task_type](task, read_rows(file), file)
                for split, file in found.items()
            }
            if task_type == "Classification":
                notes.update(code_labels(splits, task.label_column_name))
            return as_datasets(splits)

        task = own_class(name, task_type, build, folder, list(found.values()))()
        task.load_data()
        return task, notes

    def exact(self, task: Any) -> tuple[bool | None, str]:
        """Return that MTEB has no such task."""
        return None, NOT_MTEB


def own_class(
    name: str, task_type: str, build: Callable[[Any], Any], folder: Path, files: list[Path]
) -> type:
    """Make a task class whose version is the files' content, so that results of one version are not
    taken for those of another."""
    digests = "".join(sha256_of(file) for file in files)
    return task_class(
        name,
        task_type,
        build,
        description=f"A task of one's own, from {folder}",
        origin=str(folder),
        version=hashlib.sha256(digests.encode()).hexdigest()[:40],
    )


def vanished(name: str, folder: Path) -> DataError:
    """Return the error for a folder that no longer holds a task's data."""
    return DataError(
        f"{folder} no longer holds the data of task {name}. Put it back, or resolve the tasks again."
    )


def find_split(folder: Path, split: str) -> Path | None:
    """The file that holds a split."""
    files = (folder / f"{split}{suffix}" for suffix in SUFFIXES)
    return next((file for file in files if file.is_file()), None)


def read_rows(path: Path) -> Rows:
    """Every row of a file, in the file's order (which samples train a classifier depends on it)."""
    rows = [row for _, row in json_objects(path)]
    if not rows:
        raise DataError(NO_ROWS.format(path))
    return rows


def own_type(folder: Path, layouts: Mapping[str, tuple[str, ...]]) -> str | None:
    """The type of a task of one's own, recognized by its columns; None where the folder has no test
    split."""
    file = find_split(folder, "test")
    if file is None:
        return None
    first = next(json_objects(file), None)
    if first is None:
        raise DataError(NO_ROWS.format(file))
    columns = set(first[1])
    found = next((kind for kind, needed in layouts.items() if columns.issuperset(needed)), None)
    if found is None:
        valid = "; ".join(f"{kind}: {', '.join(needed)}" for kind, needed in layouts.items())
        raise DataError(
            f"{file} has the columns {', '.join(sorted(columns)) or 'none'}, which match no known layout. Valid: {valid}."
        )
    return found


def as_datasets(splits: Mapping[str, Columns]) -> Any:
    """The columns of splits as datasets."""
    from datasets import Dataset, DatasetDict

    return DatasetDict({split: Dataset.from_dict(columns) for split, columns in splits.items()})


def column(
    rows: Rows, name: str, path: Path, types: type | tuple[type, ...], wanted: str
) -> list[Any]:
    """One column, every value of the wanted kind."""
    values = []
    for number, row in enumerate(rows, 1):
        if name not in row:
            raise DataError(
                f"{path}, row {number} has no column {name!r}; it has {', '.join(map(repr, row)) or 'none'}."
            )
        value = row[name]
        if not isinstance(value, types):
            raise DataError(
                f"{path}, row {number}: {name!r} must be {wanted}, not {type(value).__name__} {value!r:.60}."
            )
        values.append(value)
    return values


def _classification(task: Any, rows: Rows, path: Path) -> Columns:
    columns = _texts(rows, path, task.input_column_name)
    labels = column(
        rows, task.label_column_name, path, (int, str), "a label (a whole number or a string)"
    )
    if len({isinstance(label, str) for label in labels}) > 1:
        raise DataError(
            f"{path}: the labels are partly numbers, partly strings. Use one kind throughout."
        )
    return columns | {task.label_column_name: labels}


def _texts(rows: Rows, path: Path, *names: str) -> Columns:
    return {name: column(rows, name, path, str, "a text") for name in names}


def code_labels(splits: Mapping[str, Columns], column: str) -> Notes:
    """Code two labels that are called something else as 0 and 1: mteb's average precision needs 1
    to be one of them."""
    labels = {label for columns in splits.values() for label in columns[column]}
    mixed = len({isinstance(label, str) for label in labels}) > 1
    if len(labels) != 2 or labels == {0, 1} or mixed:
        return {}
    codes = {label: code for code, label in enumerate(sorted(labels))}
    for columns in splits.values():
        columns[column] = [codes[label] for label in columns[column]]
    return {"label_codes": {str(label): code for label, code in codes.items()}}


def _sts(task: Any, rows: Rows, path: Path) -> Columns:
    columns = _texts(rows, path, *task.column_names)
    scores = [float(score) for score in column(rows, "score", path, (int, float), "a number")]
    odd = next((number for number, score in enumerate(scores, 1) if not math.isfinite(score)), None)
    if odd is not None:
        raise DataError(
            f"{path}, row {odd}: 'score' must be a finite number, not {scores[odd - 1]}."
        )
    return columns | {"score": scores}


def _pairs(task: Any, rows: Rows, path: Path) -> Columns:
    columns = _texts(rows, path, task.input1_column_name, task.input2_column_name)
    name = task.label_column_name
    labels = column(rows, name, path, int, "0 or 1")
    if set(labels) != {0, 1}:
        raise DataError(
            f"{path}: the pairs' {name!r} are {sorted(set(labels))[:5]}; there must be both 0 and 1."
        )
    return columns | {name: labels}


COLUMNS: dict[str, Callable[[Any, Rows, Path], Columns]] = {
    "Classification": _classification,
    "PairClassification": _pairs,
    "STS": _sts,
}
"""How the rows of a file become the columns that mteb reads, by the type of the task."""
