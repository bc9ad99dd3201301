"""Task data in a folder: which file holds which split, and the rows in it.

`<data_dir>/<Task>/<split>.jsonl.gz` (or `.jsonl`), one JSON object per line. A task with several subsets has a folder
for each below it; one whose single subset is scored may do without. A file `<split>_<something>` stands in for a
split where the split's own file is absent.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerscope.errors import DataError
from layerscope.evaluation.tasks.info import TaskInfo

SUFFIXES = (".jsonl.gz", ".jsonl")

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class SplitFile:
    """The file of one split; `stand_in` is what its name adds to the split's, or empty."""

    path: Path
    stand_in: str = ""


def find_split(folder: Path, split: str) -> SplitFile | None:
    """The file that holds a split, or stands in for it."""
    for suffix in SUFFIXES:
        if (folder / f"{split}{suffix}").is_file():
            return SplitFile(folder / f"{split}{suffix}")
    found = []
    for path in sorted(folder.glob(f"{split}_*")):
        ending = next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), None)
        if ending and path.is_file():
            found.append(SplitFile(path, path.name.removesuffix(ending).removeprefix(f"{split}_")))
    if len(found) > 1:
        raise DataError(
            f"{folder} holds several files that could stand in for the split {split!r}: "
            f"{', '.join(file.path.name for file in found)}. Keep one, or name it {split}.jsonl.gz."
        )
    return found[0] if found else None


def find_files(folder: Path, info: TaskInfo) -> dict[str, dict[str, SplitFile]] | None:
    """The files of every subset and split that a task needs; None where the folder has none of its scored splits."""
    files: dict[str, dict[str, SplitFile]] = {}
    for subset in info.subsets:
        place = folder / subset if (folder / subset).is_dir() else folder
        if place == folder and len(info.subsets) > 1:
            continue  # one flat file cannot say which subset it is
        found = {split: file for split in info.needed_splits if (file := find_split(place, split)) is not None}
        if not set(found) & set(info.splits):
            continue
        if info.train_split and info.train_split not in found:
            raise DataError(
                f"{place} holds {', '.join(file.path.name for file in found.values())} but no {info.train_split}.jsonl.gz. "
                f"The {info.task_type} task {info.name} trains a classifier: add the split {info.train_split!r}."
            )
        files[subset] = found
    return files or None


def read_rows(path: Path) -> Rows:
    """Every row of a file, in the file's order (which samples train a classifier depends on it)."""
    rows = list(_rows(path))
    if not rows:
        raise DataError(f"{path} holds no rows. It must have one JSON object per line.")
    return rows


def first_row(path: Path) -> dict[str, Any]:
    """The first row only, to see the columns."""
    for row in _rows(path):
        return row
    raise DataError(f"{path} holds no rows. It must have one JSON object per line.")


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    opener = gzip.open if path.name.endswith(".gz") else open
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise DataError(f"{path}, line {number} is {type(row).__name__}; every line must be a JSON object.")
                    yield row
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {number} is not JSON ({error}). Every line must be one JSON object.") from error
    except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read after line {number} ({error}). It may be damaged: copy it again.") from error
