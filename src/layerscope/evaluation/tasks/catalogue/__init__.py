"""Labeled tasks from the package index. Each file here that has an `ENTRY` is one; a new task is a new file.

Other packages add theirs with an entry point of the group `layerscope.tasks`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from layerscope.catalogue import Catalogue
from layerscope.evaluation.tasks.catalogue.entry import TaskEntry
from layerscope.evaluation.tasks.info import task_class

TASKS = Catalogue(TaskEntry, "layerscope.tasks", package=__name__)


def tasks() -> dict[str, TaskEntry]:
    """Every catalogued task by name."""
    return dict(sorted(TASKS.all().items()))


def fetch(name: str, *, offline: bool = False) -> Path:
    """Make sure that a task's files are on this machine, and say in which folder."""
    return TASKS.fetch(name, offline=offline)


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

        splits = entry.read(fetch(name, offline=task.offline))
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
