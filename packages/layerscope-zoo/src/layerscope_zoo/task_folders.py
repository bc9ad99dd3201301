"""Read task data from a folder in MTEB's layout, as the datasets of mteb's tasks.

The files are `<data_dir>/<Task>/<split>.jsonl.gz` (or `.jsonl`), with one JSON object per line. A
task with several subsets has a folder for each; a single scored subset needs none. Without a
split's own file, a file `<split>_<suffix>` replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerscope.data.records import as_label
from layerscope.errors import DataError
from layerscope.evaluation.tasks import LoadedTask, TaskSource
from layerscope.evaluation.tasks.mteb_tasks import is_mteb_task, mteb_task, needed_splits
from layerscope.evaluation.tasks.own_files import (
    LAYOUTS,
    SUFFIXES,
    Columns,
    Rows,
    as_datasets,
    code_labels,
    own_task,
    own_type,
    read_columns,
    read_rows,
    task_folder,
)
from layerscope_zoo.published import agrees_with_published


@dataclass(frozen=True)
class SplitFile:
    """The file of one split; `stand_in` is the suffix of a file that replaces it, or empty."""

    path: Path
    stand_in: str = ""


def find_split(folder: Path, split: str) -> SplitFile | None:
    """Return the file of a split, or the one that replaces it."""
    for suffix in SUFFIXES:
        if (folder / f"{split}{suffix}").is_file():
            return SplitFile(folder / f"{split}{suffix}")
    stand_ins = []
    for path in sorted(folder.glob(f"{split}_*")):
        ending = next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), None)
        if ending and path.is_file():
            suffix = path.name.removesuffix(ending).removeprefix(f"{split}_")
            stand_ins.append(SplitFile(path, suffix))
    if len(stand_ins) > 1:
        raise DataError(
            f"{folder} has several files that could replace the split {split!r}: "
            f"{', '.join(file.path.name for file in stand_ins)}. Keep one, or name it "
            f"{split}.jsonl.gz."
        )
    return stand_ins[0] if stand_ins else None


def find_files(folder: Path, task: Any) -> dict[str, dict[str, SplitFile]]:
    """Return the files of the subsets and splits that a task needs, for subsets with a scored
    split."""
    files: dict[str, dict[str, SplitFile]] = {}
    for subset in task.hf_subsets:
        place = folder / subset if (folder / subset).is_dir() else folder
        if place == folder and len(task.hf_subsets) > 1:
            continue  # the subset of a single file is not known
        by_split = {
            split: file
            for split in needed_splits(task)
            if (file := find_split(place, split)) is not None
        }
        if not set(by_split) & set(task.eval_splits):
            continue
        absent = [split for split in needed_splits(task) if split not in by_split]
        if absent and absent[0] not in task.eval_splits:
            kind = task.metadata.type
            name = task.metadata.name
            raise DataError(
                f"{place} has {', '.join(file.path.name for file in by_split.values())} but no "
                f"{absent[0]}.jsonl.gz. The {kind} task {name} trains a classifier: add the split "
                f"{absent[0]!r}."
            )
        files[subset] = by_split
    return files


_LAYOUTS = {
    "Reranking": ("query", "positive", "negative"),
    "STS": LAYOUTS["STS"],
    "PairClassification": LAYOUTS["PairClassification"],
    "Clustering": ("sentences", "labels"),
    "Classification": LAYOUTS["Classification"],
}


class MtebFolders(TaskSource):
    """Reads mteb's tasks, and the user's own tasks of five types."""

    name = "mteb files"
    order = 20

    def find(self, name: str, data_dir: Path | None) -> str | None:
        folder = task_folder(name, data_dir)
        if folder is None:
            return None
        task = _empty_task(name, folder)
        return str(folder) if task is not None and find_files(folder, task) else None

    def load(self, name: str, place: str) -> LoadedTask:
        folder = Path(place)
        task = _empty_task(name, folder)
        files = {} if task is None else find_files(folder, task)
        if not files:
            raise DataError(f"{folder} no longer has the data of task {name}. Put it back.")
        # missing splits and subsets of a task are not scored
        splits = [
            split
            for split in task.eval_splits
            if all(split in by_split for by_split in files.values())
        ]
        if not splits:
            raise DataError(
                f"the subsets in {folder} have no scored split in common. Give one of: "
                f"{', '.join(task.eval_splits)}."
            )
        task = task.filter_eval_splits(splits)
        task.hf_subsets = list(files)
        task.dataset, notes = build(task, files)
        task.data_loaded = True
        pairs = [pair for by_split in files.values() for pair in by_split.items()]
        replaced = {split: file for split, file in pairs if file.stand_in}
        if replaced:
            notes["stand_ins"] = {split: file.stand_in for split, file in replaced.items()}
        if not is_mteb_task(name):
            return LoadedTask(task, notes=notes)
        if not replaced:
            return LoadedTask(task, *agrees_with_published(task), notes)
        reasons = [f"{file.path.name} replaces {split!r}" for split, file in replaced.items()]
        return LoadedTask(task, False, "; ".join(reasons), notes)


SOURCE = MtebFolders()


def _empty_task(name: str, folder: Path) -> Any:
    """Return a task without data; None if the folder has no test split with a known type."""
    if is_mteb_task(name):
        return mteb_task(name)
    task_type = own_type(folder, _LAYOUTS)
    return None if task_type is None else own_task(name, task_type, folder)


_ALIASES = {"sent1": "sentence1", "sent2": "sentence2"}
"""Names of columns in some of MTEB's datasets before mteb renames them."""


def build(task: Any, files: Mapping[str, Mapping[str, SplitFile]]) -> tuple[Any, dict[str, Any]]:
    """Return the value for `task.dataset`, and notes about changes of the rows."""
    kind = task.metadata.type
    if kind not in _LAYOUTS:
        raise DataError(
            f"task {task.metadata.name} is of the type {kind}, whose data cannot be read from "
            f"files here. Valid types: {', '.join(sorted(_LAYOUTS))}. Leave it out of the data "
            "folder to load it from the hub."
        )
    notes: dict[str, Any] = {}
    subsets: dict[str, Any] = {}
    for subset, by_split in files.items():
        splits: dict[str, Any] = {}
        for split, file in by_split.items():
            rows = _as_named(read_rows(file.path), file.path)
            if kind == "Reranking":
                splits[split], dropped = retrieval_split(rows, file.path, split)
                if dropped:
                    notes.setdefault("dropped_queries", {})[split] = dropped
            elif kind == "Clustering":
                splits[split] = _clustering(task, rows, file.path)
            else:
                splits[split] = read_columns(task, rows, file.path)
        notes |= code_labels(task, splits)
        subsets[subset] = splits if kind == "Reranking" else as_datasets(splits)
    # mteb expects the subset's name always for the retrieval layout, for others only with subsets
    flat = kind != "Reranking" and not task.metadata.is_multilingual
    return (subsets["default"] if flat else subsets), notes


def _as_named(rows: Rows, path: Path) -> Rows:
    """Return rows with mteb's names of columns; MTEB's older files have all pairs in one row of
    lists."""
    rows = [{_ALIASES.get(name, name): value for name, value in row.items()} for row in rows]
    has_lists = "sentence1" in rows[0] and isinstance(rows[0].get("labels"), list)
    return _unpacked(rows[0], path) if len(rows) == 1 and has_lists else rows


def _unpacked(row: Mapping[str, Any], path: Path) -> Rows:
    lists = {name: values for name, values in row.items() if isinstance(values, list)}
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"{path}: the lists of its one row differ in length ({lengths}). They must have one "
            "entry for each pair."
        )
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def _clustering(task: Any, rows: Rows, path: Path) -> Columns:
    from mteb.abstasks import AbsTaskClusteringLegacy

    texts = task.input_column_name
    labels = task.label_column_name
    sets = [_as_set(row, texts, labels, path, number) for number, row in enumerate(rows, 1)]
    if not isinstance(sets[0][0], list):
        sets = [([text for text, _ in sets], [label for _, label in sets])]
    if isinstance(task, AbsTaskClusteringLegacy):
        return {texts: [row[0] for row in sets], labels: [row[1] for row in sets]}
    # the newer tasks draw from one pool of different texts
    pool: dict[str, Any] = {}
    for sentences, values in sets:
        for sentence, value in zip(sentences, values, strict=True):
            pool.setdefault(sentence, value)
    return {texts: list(pool), labels: list(pool.values())}


def _as_set(
    row: Mapping[str, Any], texts: str, labels: str, path: Path, number: int
) -> tuple[Any, Any]:
    """Return one row: a set as two lists of the same length, or one text with its label."""
    if texts not in row or labels not in row:
        raise DataError(
            f"{path}, row {number} needs {texts!r} and {labels!r}; it has {_columns_of(row)}."
        )
    sentences = row[texts]
    values = row[labels]
    for value in values if isinstance(values, list) else [values]:
        as_label(value, f"{path}, row {number}")
    if isinstance(sentences, str) and not isinstance(values, list):
        return sentences, values
    are_lists = isinstance(sentences, list) and isinstance(values, list)
    are_texts = are_lists and all(isinstance(sentence, str) for sentence in sentences)
    if not are_texts or len(values) != len(sentences):
        raise DataError(
            f"{path}, row {number}: {texts!r} and {labels!r} must be lists of the same length, of "
            "texts and of labels."
        )
    return sentences, values


def retrieval_split(rows: Rows, path: Path, split: str) -> tuple[dict[str, Any], int]:
    """Return one split's queries, corpus, relevant_docs and top_ranked, and the number of dropped
    queries.

    As in mteb, a query without positive or without negative texts is dropped, since it has no
    order. A query may be a list: its parts are then ranked separately, and mteb joins them by the
    id `<query>_<part>`.
    """
    from datasets import Dataset

    queries: list[dict[str, str]] = []
    corpus: list[dict[str, str]] = []
    relevant: dict[str, dict[str, int]] = {}
    ranked: dict[str, list[str]] = {}
    dropped = 0
    for number, row in enumerate(rows):
        queries_of_row, positive, negative = _checked(row, path, number + 1)
        if not (positive and negative):
            dropped += 1
            continue
        # Equal scores are ordered by id: positives come before negatives, as in mteb's conversion.
        texts = {f"a{number:06d}-{i:05d}": text for i, text in enumerate(positive)}
        judged = dict.fromkeys(texts, 1)
        texts |= {f"n{number:06d}-{i:05d}": text for i, text in enumerate(negative)}
        judged |= {key: 0 for key in texts if key not in judged}
        corpus += [{"id": key, "title": "", "text": text} for key, text in texts.items()]
        for index, text in enumerate(queries_of_row):
            query = f"{split}-{number:06d}_{index}"
            queries.append({"id": query, "text": text})
            relevant[query] = dict(judged)
            ranked[query] = list(texts)
    if not queries:
        raise DataError(f"{path} has no query with 'positive' and 'negative' texts. Add one.")
    data = {"queries": Dataset.from_list(queries), "corpus": Dataset.from_list(corpus)}
    return data | {"relevant_docs": relevant, "top_ranked": ranked}, dropped


def _columns_of(row: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, row)) or "none"


def _checked(
    row: dict[str, Any], path: Path, number: int
) -> tuple[list[str], list[str], list[str]]:
    names = _LAYOUTS["Reranking"]
    missing = [name for name in names if name not in row]
    if missing:
        raise DataError(
            f"{path}, row {number} has no column {missing[0]!r}; it has {_columns_of(row)}."
        )
    query = row["query"]
    lists = [query if isinstance(query, list) else [query], row["positive"], row["negative"]]
    for name, values in zip(names, lists, strict=True):
        if not isinstance(values, list) or not all(isinstance(text, str) for text in values):
            kind = "a text" if name == "query" else "a list of texts"
            raise DataError(f"{path}, row {number}: {name!r} must be {kind}.")
    return lists[0], lists[1], lists[2]
