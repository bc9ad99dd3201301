"""Task data in a folder: which file holds which split, the rows in it, and the datasets that mteb's
tasks make of them.

`<data_dir>/<Task>/<split>.jsonl.gz` (or `.jsonl`), one JSON object per line. A task with several
subsets has a folder for each below it; one whose single subset is scored may do without. A file
`<split>_<something>` stands in for a split where the split's own file is absent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerscope.data.readers import as_label, json_objects
from layerscope.errors import DataError
from layerscope.evaluation.tasks.info import LAYOUT_TYPES, TaskInfo, text_task

SUFFIXES = (".jsonl.gz", ".jsonl")

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class SplitFile:
    """The file of one split; `stand_in` is the suffix of a file that stands in for it, or empty."""

    path: Path
    stand_in: str = ""


def find_split(folder: Path, split: str) -> SplitFile | None:
    """The file that holds a split, or stands in for it."""
    for suffix in SUFFIXES:
        if (folder / f"{split}{suffix}").is_file():
            return SplitFile(folder / f"{split}{suffix}")
    stand_ins = []
    for path in sorted(folder.glob(f"{split}_*")):
        ending = next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), None)
        if ending and path.is_file():
            stand_ins.append(
                SplitFile(path, path.name.removesuffix(ending).removeprefix(f"{split}_"))
            )
    if len(stand_ins) > 1:
        raise DataError(
            f"{folder} holds several files that could stand in for the split {split!r}: "
            f"{', '.join(file.path.name for file in stand_ins)}. Keep one, or name it {split}.jsonl.gz."
        )
    return stand_ins[0] if stand_ins else None


def find_files(folder: Path, info: TaskInfo) -> dict[str, dict[str, SplitFile]] | None:
    """The files of every subset and split that a task needs; None where the folder has none of its
    scored splits."""
    files: dict[str, dict[str, SplitFile]] = {}
    for subset in info.subsets:
        place = folder / subset if (folder / subset).is_dir() else folder
        if place == folder and len(info.subsets) > 1:
            continue  # a single file does not say which subset it holds
        by_split = {
            split: file
            for split in info.needed_splits
            if (file := find_split(place, split)) is not None
        }
        if not set(by_split) & set(info.splits):
            continue
        if info.train_split and info.train_split not in by_split:
            raise DataError(
                f"{place} holds {', '.join(file.path.name for file in by_split.values())} but no {info.train_split}.jsonl.gz. "
                f"The {info.task_type} task {info.name} trains a classifier: add the split {info.train_split!r}."
            )
        files[subset] = by_split
    return files or None


def read_rows(path: Path) -> Rows:
    """Every row of a file, in the file's order (which samples train a classifier depends on it)."""
    rows = [row for _, row in json_objects(path)]
    if not rows:
        raise DataError(f"{path} holds no rows. It must have one JSON object per line.")
    return rows


def first_row(path: Path) -> dict[str, Any]:
    """The first row only, to see the columns."""
    for _, row in json_objects(path):
        return row
    raise DataError(f"{path} holds no rows. It must have one JSON object per line.")


_LAYOUTS = {
    "Reranking": ("query", "positive", "negative"),
    "STS": ("sentence1", "sentence2", "score"),
    "PairClassification": ("sentence1", "sentence2", "labels"),
    "Clustering": ("sentences", "labels"),
    "Classification": ("text", "label"),
}


def own_task_info(name: str, folder: Path) -> TaskInfo | None:
    """The type of a task that mteb does not have, recognized by its columns; None where the folder
    has no test split."""
    file = find_split(folder, "test")
    if file is None:
        return None
    columns = set(first_row(file.path))
    task_type = next(
        (kind for kind, needed in _LAYOUTS.items() if columns.issuperset(needed)), None
    )
    if task_type is None:
        layouts = "; ".join(f"{kind}: {', '.join(needed)}" for kind, needed in _LAYOUTS.items())
        raise DataError(
            f"{file.path} has the columns {', '.join(sorted(columns)) or 'none'}, which match no known layout. Valid: {layouts}."
        )
    return text_task(name, task_type)


_ALIASES = {"sent1": "sentence1", "sent2": "sentence2"}
"""Names under which some of MTEB's datasets hold their columns before mteb renames them."""

Notes = dict[str, Any]


def build(task: Any, files: Mapping[str, Mapping[str, SplitFile]]) -> tuple[Any, Notes]:
    """The value for `task.dataset`, and what was done to the rows on the way (empty where nothing
    was)."""
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
                columns[task.label_column_name] = [
                    codes[label] for label in columns[task.label_column_name]
                ]
        subsets[subset] = splits if kind == "Reranking" else DatasetDict(_datasets(splits))
    # mteb wants the retrieval layout under the subset's name always, the others only where there
    # are subsets.
    flat = kind != "Reranking" and not task.metadata.is_multilingual
    return (subsets["default"] if flat else subsets), notes


def _datasets(splits: Mapping[str, Mapping[str, list[Any]]]) -> dict[str, Any]:
    from datasets import Dataset

    return {split: Dataset.from_dict(dict(columns)) for split, columns in splits.items()}


def _column(
    rows: Rows, name: str, path: Path, types: type | tuple[type, ...], wanted: str
) -> list[Any]:
    """One column, every value of the wanted kind."""
    alias = next((old for old, new in _ALIASES.items() if new == name), name)
    values = []
    for number, row in enumerate(rows, 1):
        key = name if name in row else alias
        if key not in row:
            raise DataError(
                f"{path}, row {number} has no column {name!r}; it has {', '.join(map(repr, row)) or 'none'}."
            )
        value = row[key]
        if not isinstance(value, types):
            raise DataError(
                f"{path}, row {number}: {name!r} must be {wanted}, not {type(value).__name__} {value!r:.60}."
            )
        values.append(value)
    return values


def _classification(task: Any, rows: Rows, path: Path) -> dict[str, list[Any]]:
    labels = _column(
        rows, task.label_column_name, path, (int, str), "a label (a whole number or a string)"
    )
    if len({isinstance(label, str) for label in labels}) > 1:
        raise DataError(
            f"{path}: the labels are partly numbers, partly strings. Use one kind throughout."
        )
    return {
        task.input_column_name: _column(rows, task.input_column_name, path, str, "a text"),
        task.label_column_name: labels,
    }


def _binary_codes(
    splits: Mapping[str, Mapping[str, list[Any]]], column: str
) -> dict[Any, int] | None:
    """0 and 1 for two labels that are called something else: mteb's average precision needs 1 to be
    one of them."""
    labels = {label for columns in splits.values() for label in columns[column]}
    if (
        len(labels) != 2
        or labels == {0, 1}
        or len({isinstance(label, str) for label in labels}) > 1
    ):
        return None
    return {label: code for code, label in enumerate(sorted(labels))}


def _sts(task: Any, rows: Rows, path: Path) -> dict[str, list[Any]]:
    first, second = task.column_names
    scores = [float(score) for score in _column(rows, "score", path, (int, float), "a number")]
    odd = next((number for number, score in enumerate(scores, 1) if not math.isfinite(score)), None)
    if odd is not None:
        raise DataError(
            f"{path}, row {odd}: 'score' must be a finite number, not {scores[odd - 1]}."
        )
    return {
        first: _column(rows, first, path, str, "a text"),
        second: _column(rows, second, path, str, "a text"),
        "score": scores,
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
        raise DataError(
            f"{path}: the pairs' {label!r} are {sorted(set(columns[label]))[:5]}; there must be both 0 and 1."
        )
    return columns


def _unpacked(row: Mapping[str, Any], path: Path) -> Rows:
    lists = {name: values for name, values in row.items() if isinstance(values, list)}
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"{path}: the lists of its one row differ in length ({lengths}). They must have one entry for each pair."
        )
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


def _as_set(
    row: Mapping[str, Any], texts: str, labels: str, path: Path, number: int
) -> tuple[Any, Any]:
    """One row: a set as two lists of the same length, or one text with its label."""
    if texts not in row or labels not in row:
        raise DataError(
            f"{path}, row {number} needs {texts!r} and {labels!r}; it has {', '.join(map(repr, row)) or 'none'}."
        )
    sentences, values = row[texts], row[labels]
    for value in values if isinstance(values, list) else [values]:
        as_label(value, f"{path}, row {number}")
    if isinstance(sentences, str) and not isinstance(values, list):
        return sentences, values
    texts_given = isinstance(sentences, list) and all(
        isinstance(sentence, str) for sentence in sentences
    )
    if not (texts_given and isinstance(values, list) and len(values) == len(sentences)):
        raise DataError(
            f"{path}, row {number}: {texts!r} and {labels!r} must be lists of the same length, texts and labels."
        )
    return sentences, values


_COLUMNS = {
    "Classification": _classification,
    "Clustering": _clustering,
    "PairClassification": _pairs,
    "STS": _sts,
}


def retrieval_split(rows: Rows, path: Path, split: str) -> tuple[dict[str, Any], int]:
    """One split's queries, corpus, relevant_docs and top_ranked; and how many queries had nothing
    to rank.

    A query without relevant or without other texts says nothing about an order, so it is left out,
    as mteb does. A query may be a list: its parts are then ranked apart, and `<query>_<part>` is
    the id by which mteb joins them.
    """
    from datasets import Dataset

    queries: list[dict[str, str]] = []
    corpus: list[dict[str, str]] = []
    relevant: dict[str, dict[str, int]] = {}
    ranked: dict[str, list[str]] = {}
    dropped = 0
    for number, row in enumerate(rows):
        parts, positive, negative = _checked(row, path, number + 1)
        if not (positive and negative):
            dropped += 1
            continue
        # Equal scores are ordered by id; positives come before negatives there, as in mteb's own
        # conversion.
        texts = {f"a{number:06d}-{i:05d}": text for i, text in enumerate(positive)}
        judged = dict.fromkeys(texts, 1)
        texts |= {f"n{number:06d}-{i:05d}": text for i, text in enumerate(negative)}
        judged |= {key: 0 for key in texts if key not in judged}
        corpus += [{"id": key, "title": "", "text": text} for key, text in texts.items()]
        for part, text in enumerate(parts):
            query = f"{split}-{number:06d}_{part}"
            queries.append({"id": query, "text": text})
            relevant[query], ranked[query] = dict(judged), list(texts)
    if not queries:
        raise DataError(f"{path} holds no query that has both 'positive' and 'negative' texts.")
    data = {"queries": Dataset.from_list(queries), "corpus": Dataset.from_list(corpus)}
    return data | {"relevant_docs": relevant, "top_ranked": ranked}, dropped


def _checked(
    row: dict[str, Any], path: Path, number: int
) -> tuple[list[str], list[str], list[str]]:
    missing = [name for name in ("query", "positive", "negative") if name not in row]
    if missing:
        raise DataError(
            f"{path}, row {number} has no column {missing[0]!r}; it has {', '.join(map(repr, row)) or 'none'}."
        )
    query = row["query"]
    lists = [query if isinstance(query, list) else [query], row["positive"], row["negative"]]
    for name, values in zip(("query", "positive", "negative"), lists, strict=True):
        if not isinstance(values, list) or not all(isinstance(text, str) for text in values):
            raise DataError(
                f"{path}, row {number}: {name!r} must be {'a text' if name == 'query' else 'a list of texts'}."
            )
    return lists[0], lists[1], lists[2]
