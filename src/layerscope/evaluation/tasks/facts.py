"""What exactly a loaded task holds: counts and a fingerprint of its data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from layerscope.errors import DataError

_BATCH = 1000


def used_splits(task: Any) -> Iterator[tuple[str, str, Any]]:
    """Every (subset, split, data) that scoring reads, the training split included."""
    train = getattr(task, "train_split", None) if hasattr(task, "samples_per_label") else None
    for subset in task.hf_subsets:
        splits = task.dataset.get(subset, task.dataset)
        for split in dict.fromkeys((*([train] if train in splits else []), *task.eval_splits)):
            yield subset, split, splits[split]


def counts(task: Any) -> dict[str, int]:
    """Scored items (pairs, texts, queries); training rows, documents and sets where there are
    such."""
    total: dict[str, int] = {"items": 0}
    for _, split, data in used_splits(task):
        if isinstance(data, Mapping):
            total["items"] += len(data["queries"])
            total["documents"] = total.get("documents", 0) + len(data["corpus"])
        elif split not in task.eval_splits:
            total["train_items"] = total.get("train_items", 0) + len(data)
        else:
            column = getattr(task, "label_column_name", None)
            nested = (
                column in data.column_names and len(data) > 0 and isinstance(data[0][column], list)
            )
            if nested and task.metadata.type == "Clustering":
                total["sets"] = total.get("sets", 0) + len(data)
            nested = nested and (task.metadata.type == "Clustering" or len(data) == 1)
            total["items"] += sum(map(len, data[column])) if nested else len(data)
    return total


def fingerprint(task: Any) -> str:
    """A sha256 over every row that scoring reads, in its order."""
    digest = hashlib.sha256()
    for subset, split, data in used_splits(task):
        digest.update(json.dumps([subset, split]).encode())
        parts = [data] if not isinstance(data, Mapping) else [data["queries"], data["corpus"]]
        for part in parts:
            for batch in part.select_columns(_read_columns(task, part)).iter(batch_size=_BATCH):
                digest.update(_canonical(batch))
        if isinstance(data, Mapping):
            digest.update(_canonical([data["relevant_docs"], data["top_ranked"]]))
    return digest.hexdigest()


def _read_columns(task: Any, part: Any) -> list[str]:
    """The columns that scoring reads: others, such as names of labels, do not make data
    different."""
    named = [getattr(task, name, None) for name in ("input_column_name", "label_column_name")]
    named += [getattr(task, name, None) for name in ("input1_column_name", "input2_column_name")]
    named += [*getattr(task, "column_names", ()), "score", "id", "title", "text"]
    columns = sorted(
        {name for name in named if isinstance(name, str) and name in part.column_names}
    )
    return columns or sorted(part.column_names)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()


def refuse_constant(task: Any) -> None:
    """Raise where every item of a scored split has the same gold value: no correlation and no
    ranking is defined then."""
    kind = task.metadata.type
    column = (
        "score"
        if kind == "STS"
        else getattr(task, "label_column_name", None)
        if kind == "PairClassification"
        else None
    )
    for _, split, data in used_splits(task):
        if (
            column is None
            or isinstance(data, Mapping)
            or column not in data.column_names
            or len(data) < 2
        ):
            continue
        values = [
            value for row in data[column] for value in (row if isinstance(row, list) else [row])
        ]
        if len(values) > 1 and all(value == values[0] for value in values):
            raise DataError(
                f"all {len(values)} items of split {split!r} have the same gold value, {values[0]!r}: "
                f"no {task.metadata.main_score} is defined. Give items whose values differ."
            )
