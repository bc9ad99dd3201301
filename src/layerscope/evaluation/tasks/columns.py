"""Datasets whose columns are plain lists, because mteb's classification scoring reads single values of them.

A column of `datasets` looks each value up in its table anew. mteb reads the labels one by one for every training draw
and every metric, which makes these look-ups nearly all of the time that scoring one layer takes.
"""

from __future__ import annotations

from typing import Any

from datasets import Dataset, DatasetDict


class ListColumns(Dataset):
    """A dataset that gives a column as a list."""

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return found[:] if isinstance(key, str) else found


def with_list_columns(task: Any) -> None:
    """Replace the datasets of a loaded classification task; the rows, their order and the scores stay the same."""
    nested = not isinstance(task.dataset, DatasetDict)
    for subset, splits in task.dataset.items() if nested else [(None, task.dataset)]:
        replaced = DatasetDict({split: _converted(data) for split, data in splits.items()})
        if subset is None:
            task.dataset = replaced
        else:
            task.dataset[subset] = replaced


def _converted(data: Any) -> Any:
    plain = data.flatten_indices() if data._indices is not None else data
    return ListColumns(plain.data, info=plain.info, split=plain.split)
