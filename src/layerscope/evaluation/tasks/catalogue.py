"""Labeled tasks with a short name, which other packages register with an entry point of the group
`layerscope.tasks`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from layerscope.catalogue import Catalogue, Entry
from layerscope.evaluation.tasks.info import task_class

__all__ = ["Splits", "TaskEntry"]

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


TASKS = Catalogue(TaskEntry, "layerscope.tasks")


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
