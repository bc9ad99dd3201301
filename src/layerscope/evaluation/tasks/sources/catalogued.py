"""The catalogue's tasks, which other packages register under short names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from layerscope.evaluation.tasks.catalogue import TASKS
from layerscope.evaluation.tasks.mteb_tasks import make_task
from layerscope.evaluation.tasks.source import LoadedTask, TaskSource

__all__ = ["CataloguedTasks"]


class CataloguedTasks(TaskSource):
    """Tasks that packages register as `TaskEntry`."""

    name = "package"
    order = 10

    def names(self, data_dir: Path | None) -> Iterable[str]:
        return TASKS

    def find(self, name: str, data_dir: Path | None) -> str | None:
        return "" if name in TASKS else None

    def load(self, name: str, place: str) -> LoadedTask:
        from datasets import Dataset, DatasetDict

        entry = TASKS.get(name)
        origin, _, version = entry.version.rpartition(" ")
        task = make_task(
            name,
            entry.task_type,
            description=entry.summary,
            origin=origin,
            version=version,
            attributes=entry.attributes,
        )
        splits = entry.splits()
        task.dataset = DatasetDict({name: Dataset.from_list(rows) for name, rows in splits.items()})
        task.data_loaded = True
        return LoadedTask(task, notes={"license": entry.license, "citation": entry.citation})


SOURCE = CataloguedTasks()
