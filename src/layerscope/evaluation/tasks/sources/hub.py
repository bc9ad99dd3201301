"""mteb's own tasks, whose data come from the hub."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from layerscope.data.hub import hub_explained
from layerscope.errors import DataError
from layerscope.evaluation.tasks.mteb_tasks import PAPER, is_mteb_task, mteb_task, text_tasks
from layerscope.evaluation.tasks.source import LoadedTask, TaskSource

__all__ = ["HubTasks"]


class HubTasks(TaskSource):
    """mteb's own tasks at the revision that mteb names."""

    name = "hub"
    order = 40

    def names(self, data_dir: Path | None) -> Iterable[str]:
        return (*text_tasks(), *PAPER)

    def find(self, name: str, data_dir: Path | None) -> str | None:
        return "" if is_mteb_task(name) else None

    def load(self, name: str, place: str) -> LoadedTask:
        task = mteb_task(name)
        dataset = task.metadata.dataset
        repo = dataset.get("path")
        revision = dataset.get("revision")
        shown = f"the data of task {name} ({repo}, revision {revision})"
        with hub_explained("dataset", repo, revision, shown):
            task.load_data()
        for subset in task.hf_subsets:
            absent = set(task.eval_splits) - set(task.dataset.get(subset, task.dataset))
            if absent:
                splits = ", ".join(sorted(absent))
                raise DataError(f"the data of task {name} ({subset}) have no split {splits}.")
        return LoadedTask(task, True, "the revision that mteb pins")


SOURCE = HubTasks()
