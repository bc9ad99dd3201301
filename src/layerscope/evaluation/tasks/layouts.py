"""From rows in a file to the datasets that mteb's tasks expect, for each task type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layerscope.errors import DataError
from layerscope.evaluation.tasks.files import Rows, SplitFile, read_rows
from layerscope.evaluation.tasks.info import LAYOUT_TYPES
from layerscope.evaluation.tasks.reranking import retrieval_split

_ALIASES = {"sent1": "sentence1", "sent2": "sentence2"}
"""Names under which some of MTEB's datasets hold their columns before mteb renames them."""

Notes = dict[str, Any]


def build(task: Any, files: Mapping[str, Mapping[str, SplitFile]]) -> tuple[Any, Notes]:
    """The value for `task.dataset`, and what was done to the rows on the way (empty where nothing was)."""
    from datasets import DatasetDict

    kind = task.metadata.type
    if kind not in LAYOUT_TYPES:
        raise DataError(
            f"task {task.metadata.name} is of the type {kind}, whose data cannot be read from files here. "
            f"Valid types: {', '.join(LAYOUT_TYPES)}. Leave it out of the data folder to load it from the hub."
        )
    notes: Notes = {}
    subsets: dict[str, Any] = {}
    for subset, by_split in files.items():
        splits: dict[str, Any] = {}
        for split, file in by_split.items():
            rows = read_rows(file.path)
            if kind == "Reranking":
                splits[split], dropped = retrieval_split(rows, file.path, split)
                if dropped:
                    notes.setdefault("dropped_queries", {})[split] = dropped
            else:
                splits[split] = _COLUMNS[kind](task, rows, file.path)
        if kind == "Classification" and (codes := _binary_codes(splits, task.label_column_name)):
            notes["label_codes"] = {str(label): code for label, code in codes.items()}
            for columns in splits.values():
                columns[task.label_column_name] = [codes[label] for label in columns[task.label_column_name]]
        subsets[subset] = splits if kind == "Reranking" else DatasetDict(_datasets(splits))
    # mteb wants the retrieval layout under the subset's name always, the others only where there are subsets.
    flat = kind != "Reranking" and not task.metadata.is_multilingual
    return (subsets["default"] if flat else subsets), notes


def _datasets(splits: Mapping[str, Mapping[str, list[Any]]]) -> dict[str, Any]:
    from datasets import Dataset

    return {split: Dataset.from_dict(dict(columns)) for split, columns in splits.items()}


def _column(rows: Rows, name: str, path: Path, types: type | tuple[type, ...], wanted: str) -> list[Any]:
    """One column, every value of the wanted kind."""
    alias = next((old for old, new in _ALIASES.items() if new == name), name)
    values = []
    for number, row in enumerate(rows, 1):
        key = name if name in row else alias
        if key not in row:
            raise DataError(f"{path}, row {number} has no column {name!r}; it has {', '.join(map(repr, row)) or 'none'}.")
        value = row[key]
        if not isinstance(value, types):
            raise DataError(f"{path}, row {number}: {name!r} must be {wanted}, not {type(value).__name__} {value!r:.60}.")
        values.append(value)
    return values


def _classification(task: Any, rows: Rows, path: Path) -> dict[str, list[Any]]:
    labels = _column(rows, task.label_column_name, path, (int, str), "a label (a whole number or a string)")
    if len({isinstance(label, str) for label in labels}) > 1:
        raise DataError(f"{path}: the labels are partly numbers, partly strings. Use one kind throughout.")
    return {
        task.input_column_name: _column(rows, task.input_column_name, path, str, "a text"),
        task.label_column_name: labels,
    }


def _binary_codes(splits: Mapping[str, Mapping[str, list[Any]]], column: str) -> dict[Any, int] | None:
    """0 and 1 for two labels that are called something else: mteb's average precision needs 1 to be one of them."""
    labels = {label for columns in splits.values() for label in columns[column]}
    if len(labels) != 2 or labels == {0, 1} or len({isinstance(label, str) for label in labels}) > 1:
        return None
    return {label: code for code, label in enumerate(sorted(labels))}


def _sts(task: Any, rows: Rows, path: Path) -> dict[str, list[Any]]:
    first, second = task.column_names
    return {
        first: _column(rows, first, path, str, "a text"),
        second: _column(rows, second, path, str, "a text"),
        "score": [float(score) for score in _column(rows, "score", path, (int, float), "a number")],
    }


def _pairs(task: Any, rows: Rows, path: Path) -> dict[str, list[Any]]:
    first, second, label = task.input1_column_name, task.input2_column_name, task.label_column_name
    if len(rows) == 1 and isinstance(rows[0].get(label), list):
        rows = _unpacked(rows[0], path)  # MTEB's older files hold all pairs in one row of lists
    columns = {
        first: _column(rows, first, path, str, "a text"),
        second: _column(rows, second, path, str, "a text"),
        label: _column(rows, label, path, int, "0 or 1"),
    }
    if set(columns[label]) != {0, 1}:
        raise DataError(f"{path}: the pairs' {label!r} are {sorted(set(columns[label]))[:5]}; there must be both 0 and 1.")
    return columns


def _unpacked(row: Mapping[str, Any], path: Path) -> Rows:
    lists = {name: values for name, values in row.items() if isinstance(values, list)}
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"{path}: the lists of its one row differ in length ({lengths}). They must go pair by pair.")
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def _clustering(task: Any, rows: Rows, path: Path) -> dict[str, list[Any]]:
    from mteb.abstasks import AbsTaskClusteringLegacy

    texts, labels = task.input_column_name, task.label_column_name
    sets = [_as_set(row, texts, labels, path, number) for number, row in enumerate(rows, 1)]
    if not isinstance(sets[0][0], list):
        sets = [([text for text, _ in sets], [label for _, label in sets])]
    if isinstance(task, AbsTaskClusteringLegacy):
        return {texts: [s for s, _ in sets], labels: [lab for _, lab in sets]}
    # The newer tasks draw from one pool, in which a text may stand only once.
    pool: dict[str, Any] = {}
    for sentences, values in sets:
        for sentence, value in zip(sentences, values, strict=True):
            pool.setdefault(sentence, value)
    return {texts: list(pool), labels: list(pool.values())}


def _as_set(row: Mapping[str, Any], texts: str, labels: str, path: Path, number: int) -> tuple[Any, Any]:
    """One row: a set as two lists of the same length, or one text with its label."""
    if texts not in row or labels not in row:
        raise DataError(f"{path}, row {number} needs {texts!r} and {labels!r}; it has {', '.join(map(repr, row)) or 'none'}.")
    sentences, values = row[texts], row[labels]
    if isinstance(sentences, str) and not isinstance(values, list):
        return sentences, values
    if not (_all(sentences, str) and isinstance(values, list) and len(values) == len(sentences)):
        raise DataError(f"{path}, row {number}: {texts!r} and {labels!r} must be lists of the same length, texts and labels.")
    return sentences, values


def _all(values: object, kind: type) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str) and all(isinstance(v, kind) for v in values)


_COLUMNS = {"Classification": _classification, "Clustering": _clustering, "PairClassification": _pairs, "STS": _sts}
