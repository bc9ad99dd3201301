"""Labeled items from a file, a task or lists, and their parts: training, validation and test."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.data.corpus import Corpus
from layerscope.data.items import PARTS, LabeledItems, get_kind, is_items
from layerscope.data.readers import TABLE_SUFFIXES, read_rows
from layerscope.data.records import as_label, is_missing
from layerscope.errors import DataError, InvalidValueError, LayerscopeError, clean_names

VALIDATION_SHARE = 0.1
TEST_SHARE = 0.2

# A name with such an ending is a file's, though not all of them can be read.
_FILES = (*TABLE_SUFFIXES, ".json", ".parquet", ".txt", ".gz")
_TEXT_COLUMNS = ("text", "sentence", "content")
_LABEL_COLUMNS = ("label", "labels", "class", "category")
_VALIDATION = ("dev", "valid", "val")

LabeledTexts = list[tuple[str, Any]]


def open_examples(
    data: Any,
    kind: str = "",
    labels: Sequence[Any] | None = None,
    test: Any = None,
    data_dir: Path | None = None,
) -> LabeledItems:
    """Return labeled items from the data that a user names or gives.

    A name or path means what `kind` says: items of that kind, `task`, or (for texts) a file if
    there is one or it is named like one, and else a classification task.
    """
    if data is None:
        raise LayerscopeError(
            "a probe needs data: labeled texts (a file with `text` and `label`, or a list with "
            "labels=), or the name of a classification task."
        )
    open_labeled = get_kind(data.kind if is_items(data) else kind).open_labeled
    if open_labeled is not None:
        return open_labeled(data, test)
    if isinstance(data, (str, Path)):
        path = Path(data).expanduser()
        if kind != "task" and (path.is_file() or path.name.lower().endswith(_FILES)):
            return read_texts(path, test)
        return read_task(str(data), data_dir)
    texts = list(data.texts if isinstance(data, Corpus) else data)
    if labels is None or len(labels) != len(texts):
        count = 0 if labels is None else len(labels)
        raise InvalidValueError(f"a list of {len(texts)} texts needs as many labels, not {count}.")
    return text_examples({"": list(zip(texts, labels, strict=True))}, "texts")


def text_examples(
    rows: Mapping[str, LabeledTexts], name: str, facts: Mapping[str, object] | None = None
) -> LabeledItems:
    """Return texts with labels by split; the split "" is everything, to be split later.

    A repeated text is used once: in the test part, else in the validation part, else for training.
    So no probe is scored on what it was trained on. A text with different labels is left out.
    """
    first: dict[str, tuple[str, str]] = {}  # the part and the label of each text
    contradicting: set[str] = set()
    repeated = 0
    for part in ("test", "validation", "train", ""):
        place = f" of {part}" if part else ""
        for number, (text, value) in enumerate(rows.get(part, ()), 1):
            label = as_label(value, f"{name}, example {number}{place}")
            if text not in first:
                first[text] = (part, label)
                continue
            repeated += 1
            if first[text][1] != label:
                contradicting.add(text)
    usable = {text: entry for text, entry in first.items() if text not in contradicting}
    if not usable:
        raise DataError(f"{name} holds no labeled text that can be used.")
    classes = sorted({label for _, label in usable.values()}, key=_class_order)
    number_of = {label: number for number, label in enumerate(classes)}
    labels = np.array([number_of[label] for _, label in usable.values()])
    part_of = np.array([part for part, _ in usable.values()])
    digest = hashlib.sha256()
    for text, (part, label) in usable.items():
        digest.update(f"{len(text)}\0{text}\0{part}\0{label}\0".encode("utf-8", "surrogatepass"))
    return LabeledItems(
        "text",
        name,
        Corpus.of(list(usable), name),
        labels,
        clean_names(classes),
        digest.hexdigest(),
        {part: np.flatnonzero(part_of == part) for part in PARTS},
        {
            **(facts or {}),
            "repeated_texts": repeated,
            "contradicting_texts": len(contradicting),
        },
    )


def _class_order(label: str) -> tuple[int, float, str]:
    """Return a sorting key: numbers by their size, then words."""
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label


def read_texts(path: str | Path, test: str | Path | None = None) -> LabeledItems:
    """Read a file with the columns `text` and `label`, and perhaps one for the test part.

    A column `split` may say which part a row is for.
    """
    file = Path(path)
    dropped: Counter[str] = Counter()
    rows = _read_rows(file, "" if test is None else "train", dropped)
    if test is not None:
        rows["test"] = _read_rows(Path(test), "test", dropped)["test"]
    facts: dict[str, object] = {"file": str(file), "test_file": test and str(test)}
    if dropped:
        facts["dropped"] = dict(dropped)
    return text_examples(rows, file.name, facts)


def _read_rows(file: Path, part: str, dropped: Counter[str]) -> dict[str, LabeledTexts]:
    """Return the labeled texts of a file by part; all in one part if it is given."""
    columns, rows = read_rows(file)
    column_of = {column.strip().lower(): column for column in columns}
    text_column = next((column_of[name] for name in _TEXT_COLUMNS if name in column_of), None)
    label_column = next((column_of[name] for name in _LABEL_COLUMNS if name in column_of), None)
    if text_column is None or label_column is None:
        raise DataError(
            f"{file} has the columns {', '.join(columns)}; a probe needs `text` and `label` (and "
            "may have `split`)."
        )
    by_part: dict[str, LabeledTexts] = {part: []}
    for number, row in rows:
        text = "" if row.get(text_column) is None else str(row[text_column])
        label = row.get(label_column)
        if not text.strip() or is_missing(label):
            dropped["no label" if text.strip() else "no text"] += 1
            continue
        as_label(label, f"{file}, row {number}")
        split = str(row.get(column_of.get("split", ""), "") or "").strip().lower()
        target = part or ("validation" if split in _VALIDATION else split)
        if target not in ("", *PARTS):
            raise DataError(
                f"{file}, row {number}: the split {split!r} is not one of {', '.join(PARTS)}."
            )
        by_part.setdefault(target, []).append((text, label))
    return by_part


def read_task(name: str, data_dir: Path | None) -> LabeledItems:
    """Read a classification task: a catalogued one, one of mteb's, or one in a folder."""
    from layerscope.evaluation.tasks import TASKS

    if name in TASKS and TASKS.get(name).task_type == "Classification":  # needs no mteb
        entry = TASKS.get(name)
        rows = {
            split: [(row["text"], row["label"]) for row in split_rows]
            for split, split_rows in entry.splits().items()
        }
        return text_examples(rows, name, {"task": name, **entry.facts()})
    from layerscope.evaluation.tasks import resolve_tasks

    specs = resolve_tasks([name], data_dir=data_dir)
    if len(specs) != 1:
        raise LayerscopeError(
            f"a probe reads one task; {name!r} stands for {len(specs)}. Name one of them."
        )
    loaded = specs[0].load()
    task = loaded.task
    if task.metadata.type != "Classification":
        raise LayerscopeError(
            f"{name} is a task of type {task.metadata.type}; a probe needs a Classification task."
        )
    subset = task.hf_subsets[0]
    dataset = task.dataset.get(subset, task.dataset)
    test = task.eval_splits[0]
    part_of = {task.train_split: "train", "validation": "validation", "dev": "validation"}
    part_of[test] = "test"
    rows = {}
    for split, part in part_of.items():
        if split in dataset:
            texts = dataset[split][task.input_column_name]
            rows[part] = list(zip(texts, dataset[split][task.label_column_name], strict=True))
    facts = {"task": name, "subset": subset, "split": test, "facts": specs[0].facts(loaded)}
    return text_examples(rows, name, facts)


@dataclass(frozen=True)
class Split:
    """The numbers of the items of each part, in a random order; no item is in two."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray

    def sizes(self) -> dict[str, int]:
        """Return the number of items of each part."""
        return {name: len(getattr(self, name)) for name in PARTS}

    def renumbered(self) -> Split:
        """Return the places of the items in a row of all parts, one after the other."""
        ends = np.cumsum(list(self.sizes().values()))
        return Split(*np.split(np.arange(ends[-1]), ends[:-1]))


def make_split(
    labels: np.ndarray,
    parts: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    sample: int | None = None,
) -> Split:
    """Return the parts that data come with; missing ones are drawn, class by class, with the seed.

    `sample` keeps at most so many items of each part, drawn class by class too.
    """
    parts = parts or {}
    rng = np.random.default_rng([seed, 0])
    train = parts.get("train", np.arange(len(labels)))
    test = parts.get("test")
    validation = parts.get("validation")
    if test is None:
        test = _stratified(train, labels, _share_of(train, TEST_SHARE), rng)
        train = np.setdiff1d(train, test)
    if sample is not None:
        if sample < 2:
            raise InvalidValueError(f"sample must be at least 2 items, not {sample}.")
        train = _at_most(train, labels, sample, rng)
        test = _at_most(test, labels, sample, rng)
    if validation is None:
        validation = _stratified(train, labels, _share_of(train, VALIDATION_SHARE), rng)
        train = np.setdiff1d(train, validation)
    elif sample is not None:
        validation = _at_most(validation, labels, sample, rng)
    order = np.random.default_rng([seed, 3])
    split = Split(*(order.permutation(np.sort(part)) for part in (train, validation, test)))
    for name, count in split.sizes().items():
        if count == 0:
            raise DataError(
                f"no items are left for the {name} part of {len(labels)} items. Give more labeled "
                "items."
            )
    if len(np.unique(labels[split.train])) < 2:
        raise DataError("a probe needs training items of at least two classes.")
    return split


def _share_of(items: np.ndarray, share: float) -> int:
    return max(1, round(share * len(items)))


def _at_most(
    items: np.ndarray, labels: np.ndarray, limit: int, rng: np.random.Generator
) -> np.ndarray:
    return items if len(items) <= limit else _stratified(items, labels, limit, rng)


def _stratified(
    items: np.ndarray, labels: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Return some of the items: those of a class are spread evenly over an order, whose front is
    taken."""
    shuffled = items[rng.permutation(len(items))]
    classes = labels[shuffled]
    places = np.empty(len(shuffled))
    for number in np.unique(classes):
        of_class = np.flatnonzero(classes == number)
        places[of_class] = (np.arange(len(of_class)) + rng.random()) / len(of_class)
    return shuffled[np.argsort(places, kind="stable")[:count]]
