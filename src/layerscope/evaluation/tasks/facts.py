"""Counts and a fingerprint of the data of a loaded task."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from layerscope.errors import DataError

__all__ = ["named_columns", "used_splits"]

_BATCH = 1000
_COLUMNS = ("input_column_name", "label_column_name", "input1_column_name", "input2_column_name")


def used_splits(task: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield every (subset, split, data) that scoring reads, the training split included."""
    train = getattr(task, "train_split", None) if hasattr(task, "samples_per_label") else None
    for subset in task.hf_subsets:
        splits = task.dataset.get(subset, task.dataset)
        for split in dict.fromkeys((*([train] if train in splits else []), *task.eval_splits)):
            yield subset, split, splits[split]


def named_columns(task: Any, data: Any) -> list[str]:
    """Return the columns of a dataset that a task's attributes name as texts or labels."""
    names = [getattr(task, attribute, None) for attribute in _COLUMNS]
    names += getattr(task, "column_names", ())
    return [name for name in names if isinstance(name, str) and name in data.column_names]


def counts(task: Any) -> dict[str, int]:
    """Return the number of scored items (pairs, texts, queries), and of training rows, documents
    and sets where there are such."""
    total = Counter(items=0)
    for _, split, data in used_splits(task):
        if isinstance(data, Mapping):
            total["items"] += len(data["queries"])
            total["documents"] += len(data["corpus"])
        elif split not in task.eval_splits:
            total["train_items"] += len(data)
        else:
            column = getattr(task, "label_column_name", None)
            has_lists = (
                column in data.column_names and len(data) and isinstance(data[0][column], list)
            )
            is_clustering = task.metadata.type == "Clustering"
            if has_lists and is_clustering:
                total["sets"] += len(data)
            if has_lists and (is_clustering or len(data) == 1):
                total["items"] += sum(map(len, data[column]))
            else:
                total["items"] += len(data)
    return dict(total)


def fingerprint(task: Any) -> str:
    """Return a sha256 over every row that scoring reads, in its order.

    Columns that scoring does not read, such as names of labels, do not make data different.
    """
    digest = hashlib.sha256()
    for subset, split, data in used_splits(task):
        digest.update(json.dumps([subset, split]).encode())
        is_search = isinstance(data, Mapping)
        for table in [data["queries"], data["corpus"]] if is_search else [data]:
            usual = {"score", "id", "title", "text"} & set(table.column_names)
            columns = sorted({*named_columns(task, table), *usual}) or sorted(table.column_names)
            for batch in table.select_columns(columns).iter(batch_size=_BATCH):
                digest.update(_canonical(batch))
        if is_search:
            digest.update(_canonical([data["relevant_docs"], data["top_ranked"]]))
    return digest.hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()


def refuse_constant(task: Any) -> None:
    """Raise where every item of a scored split has the same gold value: no correlation and no
    ranking is defined then."""
    kinds = {"STS": "score", "PairClassification": getattr(task, "label_column_name", None)}
    column = kinds.get(task.metadata.type)
    for _, split, data in used_splits(task) if column else ():
        if column not in data.column_names:
            continue
        values = [
            value for row in data[column] for value in (row if isinstance(row, list) else [row])
        ]
        if len(values) > 1 and all(value == values[0] for value in values):
            raise DataError(
                f"all {len(values)} items of split {split!r} have the same gold value, {values[0]!r}: "
                f"no {task.metadata.main_score} is defined. Give items whose values differ."
            )
