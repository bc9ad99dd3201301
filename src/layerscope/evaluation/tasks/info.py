"""What is scored of a task (type, splits, subsets), and mteb's task objects themselves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from layerscope.errors import DataError, MissingExtraError
from layerscope.evaluation.tasks.paper import MONOLINGUAL, PAPER_TASKS

LAYOUT_TYPES = ("Classification", "Clustering", "PairClassification", "Reranking", "STS")
"""The task types whose data can be given as files."""


@dataclass(frozen=True)
class TaskInfo:
    """What is scored of one task. `train_split` is None where nothing is trained."""

    name: str
    task_type: str
    subsets: tuple[str, ...] = MONOLINGUAL
    splits: tuple[str, ...] = ("test",)
    train_split: str | None = None

    @property
    def needed_splits(self) -> tuple[str, ...]:
        """Every split that must be there."""
        return (*((self.train_split,) if self.train_split else ()), *self.splits)


@cache
def text_tasks() -> dict[str, Any]:
    """mteb's task classes that need nothing but text, by name."""
    try:
        from mteb.get_tasks import TASK_LIST
    except ImportError as error:
        raise MissingExtraError("scoring labelled tasks", "mteb") from error
    return {cls.metadata.name: cls for cls in TASK_LIST if list(cls.metadata.modalities) == ["text"]}


def is_mteb_task(name: str) -> bool:
    """Whether mteb has a text task of this name; the paper's tasks are known without importing mteb."""
    return name in PAPER_TASKS or name in text_tasks()


def task_info(name: str) -> TaskInfo:
    """What is scored of one of mteb's tasks."""
    if name in PAPER_TASKS:
        task = PAPER_TASKS[name]
        train = "train" if task.task_type == "Classification" else None
        return TaskInfo(name, task.task_type, task.subsets, task.splits, train)
    cls = text_tasks()[name]
    metadata = cls.metadata
    parts = getattr(metadata, "tasks", None)
    if parts:
        names = ", ".join(part.metadata.name for part in parts)
        raise DataError(f"task {name!r} is an average over other tasks. Give its parts instead: {names}.")
    train = getattr(cls, "train_split", None) if metadata.type == "Classification" else None
    return TaskInfo(name, metadata.type, _subsets(metadata), tuple(metadata.eval_splits), train)


def _subsets(metadata: Any) -> tuple[str, ...]:
    """The subsets that are English throughout; every subset of a task that has none."""
    languages = metadata.hf_subsets_to_langscripts
    english = [subset for subset, codes in languages.items() if all(code.startswith("eng-") for code in codes)]
    return tuple(english or languages)


def new_task(info: TaskInfo) -> Any:
    """mteb's own task object without its data, set to the splits and subsets that are scored."""
    text_tasks()
    import mteb

    subsets = None if info.subsets == MONOLINGUAL else list(info.subsets)
    return mteb.get_task(info.name, eval_splits=list(info.splits), hf_subsets=subsets)


def reseed(task: Any) -> None:
    """Put a task's random state back to where it was when the task was made.

    mteb's newer clustering tasks draw their documents from a generator that moves on with every evaluation. Without
    this, the second layer that one task object scores would be scored on other documents than the first.
    """
    fresh = type(task)(seed=task.seed)
    task.rng_state, task.np_rng = fresh.rng_state, fresh.np_rng
