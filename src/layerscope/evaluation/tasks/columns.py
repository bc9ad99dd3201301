"""Tasks whose datasets give columns as plain lists. Rows, order and scores stay the same.

A column of `datasets` looks each value up in its table anew. mteb reads labels and texts one by
one, for every training draw, every clustering and every metric. These look-ups then take most of
the time of scoring one layer on a clustering task, and nearly all of it on a classification task,
beyond the fits.
"""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def _list_columns_class() -> Any:
    from datasets import Dataset

    class ListColumns(Dataset):
        """A dataset that gives a column as a list."""

        def __getitem__(self, key: Any) -> Any:
            rows = super().__getitem__(key)
            return rows[:] if isinstance(key, str) else rows

        def select(self, *args: Any, **kwargs: Any) -> ListColumns:
            """Return some of the rows: `datasets` would return its own class."""
            return _with_lists(super().select(*args, **kwargs))

    return ListColumns


def _with_lists(data: Any) -> Any:
    """Return the same rows, in a dataset that gives columns as lists."""
    return _list_columns_class()(
        data.data,
        info=data.info,
        split=data.split,
        indices_table=data._indices,
        fingerprint=data._fingerprint,
    )


def list_columns(task: Any) -> None:
    """Let a loaded classification or clustering task read its columns as lists."""
    if task.metadata.type not in ("Classification", "Clustering"):
        return
    from datasets import DatasetDict

    if isinstance(task.dataset, DatasetDict):
        task.dataset = _converted(task.dataset)
    else:
        task.dataset = {subset: _converted(splits) for subset, splits in task.dataset.items()}
    # mteb makes a dataset of every set of texts
    if task.metadata.type == "Clustering" and hasattr(task, "evaluator"):
        _list_sets(task)


def _converted(splits: Any) -> Any:
    """Return the rows in one piece: those of a sample are not looked up through their numbers."""
    from datasets import DatasetDict

    flat = {
        split: data.flatten_indices() if data._indices is not None else data
        for split, data in splits.items()
    }
    return DatasetDict({split: _with_lists(data) for split, data in flat.items()})


def _list_sets(task: Any) -> None:
    class ListEvaluator(task.evaluator):
        """mteb's evaluator, given each set's columns as lists."""

        def __init__(self, dataset: Any, **settings: Any) -> None:
            super().__init__(_with_lists(dataset), **settings)

    task.evaluator = ListEvaluator
    if hasattr(task, "_compute_metrics"):
        task._compute_metrics = lambda labels, *rest, **settings: type(task)._compute_metrics(
            task, labels[:], *rest, **settings
        )
