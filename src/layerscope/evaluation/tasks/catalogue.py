"""Labeled tasks with a short name, which other packages register with an entry point of the group
`layerscope.tasks`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from layerscope.catalogue import Catalogue, Entry

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

    def splits(self) -> Splits:
        """Return its rows by split; files that are not on this machine are fetched."""
        return self.read(self.fetch())


TASKS = Catalogue(TaskEntry, "layerscope.tasks")
