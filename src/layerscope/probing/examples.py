"""Labeled items from a file, a task or lists, and their parts: training, validation and
test."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.data.corpus import Corpus
from layerscope.data.items import is_items
from layerscope.data.kinds import get_kind
from layerscope.data.labeled import PARTS, LabeledItems
from layerscope.data.readers import TABLE_SUFFIXES, read_rows
from layerscope.data.records import as_label, is_missing
from layerscope.errors import DataError, InvalidValueError, LayerscopeError, clean_names

_FILES = (
    *TABLE_SUFFIXES,
    ".json",
    ".parquet",
    ".txt",
    ".gz",
)  # what is named like a file is one, though not all can be read


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
            "a probe needs data: labeled texts (a file with `text` and `label`, or a list with labels=), "
            "or the name of a classification task."
        )
    own_kind = data.kind if is_items(data) else kind
    open_labeled = get_kind(own_kind).open_labeled
    if open_labeled is not None:
        return open_labeled(data, test)
    if isinstance(data, (str, Path)):
        path = Path(data).expanduser()
        if kind != "task" and (path.is_file() or path.name.lower().endswith(_FILES)):
            return read_texts(path, test)
        return read_task(str(data), data_dir)
    texts = list(data.texts if isinstance(data, Corpus) else data)
    if labels is None or len(labels) != len(texts):
        raise InvalidValueError(
            f"a list of {len(texts)} texts needs as many labels, not {0 if labels is None else len(labels)}."
        )
    return text_examples({"": list(zip(texts, labels, strict=True))}, "texts")


def text_examples(
    rows: Mapping[str, Sequence[tuple[str, Any]]], name: str, facts: dict[str, Any] | None = None
) -> LabeledItems:
    """Return texts with labels by split; the split "" is everything, to be split later.

    A text that comes again is used once: where it is first found, test before validation before
    training, so that no probe is judged on what it was trained on. A text with different labels is
    left out of all.
    """
    first: dict[str, tuple[str, str]] = {}  # the part and the label of each text
    contradicting: set[str] = set()
    repeated = 0
    for part in ("test", "validation", "train", ""):
        for place, (text, value) in enumerate(rows.get(part, ()), 1):
            label = as_label(value, f"{name}, example {place} {part and f'of {part}'}".strip())
            if text not in first:
                first[text] = (part, label)
                continue
            repeated += 1
            if first[text][1] != label:
                contradicting.add(text)
    usable = {text: entry for text, entry in first.items() if text not in contradicting}
    if not usable:
        raise DataError(f"{name} holds no labeled text that can be used.")
    classes = sorted({label for _, label in usable.values()}, key=_in_order)
    number = {label: i for i, label in enumerate(classes)}
    labels = np.array([number[label] for _, label in usable.values()])
    parts = {p: np.flatnonzero([part == p for part, _ in usable.values()]) for p in PARTS}
    digest = hashlib.sha256()
    for text, (part, label) in usable.items():
        digest.update(f"{len(text)}\0{text}\0{part}\0{label}\0".encode("utf-8", "surrogatepass"))
    all_facts = {
        **(facts or {}),
        "repeated_texts": repeated,
        "contradicting_texts": len(contradicting),
    }
    corpus = Corpus.of(list(usable), name)
    shown = clean_names(classes)
    return LabeledItems("text", name, corpus, labels, shown, digest.hexdigest(), parts, all_facts)


def read_texts(path: str | Path, test: str | Path | None = None) -> LabeledItems:
    """Read a labeled file (`text,label`, and `split` where it says which part a row is for), and perhaps
    one for the test part."""
    file = Path(path)
    dropped: Counter[str] = Counter()
    rows = _rows(file, "train" if test is not None else None, dropped)
    if test is not None:
        rows["test"] = [row for part in _rows(Path(test), "test", dropped).values() for row in part]
    facts: dict[str, Any] = {"file": str(file), "test_file": None if test is None else str(test)}
    return text_examples(rows, file.name, facts | ({"dropped": dict(dropped)} if dropped else {}))


def read_task(name: str, data_dir: Path | None) -> LabeledItems:
    """Read a classification task: of the catalogue, of mteb's, or in a folder of one's own."""
    from layerscope.evaluation.tasks.catalogue import TASKS

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
    split = task.eval_splits[0]
    sources = {"train": (task.train_split,), "validation": ("validation", "dev"), "test": (split,)}
    rows = {
        part: list(
            zip(
                dataset[source][task.input_column_name],
                dataset[source][task.label_column_name],
                strict=True,
            )
        )
        for part, splits in sources.items()
        for source in splits
        if source in dataset and (part == "test" or source != split)
    }
    facts = {"task": name, "subset": subset, "split": split, "facts": specs[0].facts(loaded)}
    return text_examples(rows, name, facts)


_VALIDATION = ("dev", "valid", "val")


def _rows(file: Path, part: str | None, dropped: Counter[str]) -> dict[str, list[tuple[str, Any]]]:
    columns, rows = read_rows(file)
    named = {column.strip().lower(): column for column in columns}
    text_column = next((named[n] for n in ("text", "sentence", "content") if n in named), None)
    label_names = ("label", "labels", "class", "category")
    label_column = next((named[n] for n in label_names if n in named), None)
    if text_column is None or label_column is None:
        raise DataError(
            f"{file} has the columns {', '.join(columns)}; a probe needs `text` and `label` (and may have `split`)."
        )
    by_part: dict[str, list[tuple[str, Any]]] = {}
    for number, row in rows:
        text = "" if row.get(text_column) is None else str(row[text_column])
        label = row.get(label_column)
        if not text.strip() or is_missing(label):
            dropped["no label" if text.strip() else "no text"] += 1
            continue
        as_label(label, f"{file}, row {number}")
        split = str(row.get(named.get("split", ""), "") or "").strip().lower()
        target = part or ("validation" if split in _VALIDATION else split)
        if target not in ("", *PARTS):
            raise DataError(
                f"{file}, row {number}: the split {split!r} is not one of {', '.join(PARTS)}."
            )
        by_part.setdefault(target, []).append((text, label))
    return by_part


def _in_order(label: str) -> tuple[int, float, str]:
    """Return a sorting key: numbers by their size, then words."""
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label


VALIDATION_SHARE = 0.1
TEST_SHARE = 0.2


@dataclass(frozen=True)
class Split:
    """Positions of the items of each part; no item is in two."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray

    def shuffled(self, seed: int) -> Split:
        """Return the same parts, each in a random order: neighbors are then as good a batch as any."""
        rng = np.random.default_rng([seed, 3])
        return Split(*(rng.permutation(part) for part in (self.train, self.validation, self.test)))

    def sizes(self) -> dict[str, int]:
        """Return the number of items of each part."""
        return {name: len(getattr(self, name)) for name in ("train", "validation", "test")}


def make_split(
    labels: np.ndarray,
    train: np.ndarray | None = None,
    test: np.ndarray | None = None,
    validation: np.ndarray | None = None,
    seed: int = 0,
    sample: int | None = None,
) -> Split:
    """Return the parts: those that data come with are kept; missing ones are drawn from the rest, class by class,
    with the seed.

    `sample` keeps at most so many items of each part, drawn class by class too.
    """
    rng = np.random.default_rng([seed, 0])
    pool = np.arange(len(labels)) if train is None else np.asarray(train)
    if test is None:
        pool, test = _part(pool, labels, TEST_SHARE, rng)
    if sample is not None:
        if sample < 2:
            raise InvalidValueError(f"sample must be at least 2 items, not {sample}.")
        pool = _at_most(pool, labels, sample, rng)
        test = _at_most(np.asarray(test), labels, sample, rng)
    if validation is None:
        pool, validation = _part(pool, labels, VALIDATION_SHARE, rng)
    elif sample is not None:
        validation = _at_most(np.asarray(validation), labels, sample, rng)
    split = Split(*(np.sort(np.asarray(part, dtype=np.int64)) for part in (pool, validation, test)))
    for name, count in split.sizes().items():
        if count == 0:
            raise DataError(
                f"no items are left for the {name} part of {len(labels)} items. Give more labeled items."
            )
    if len(np.unique(labels[split.train])) < 2:
        raise DataError("a probe needs training items of at least two classes.")
    return split


def _part(
    pool: np.ndarray, labels: np.ndarray, share: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pool without a share of it, and that share: of every class alike, rounded so that the
    whole is right."""
    want = max(1, round(share * len(pool)))
    drawn = _stratified(pool, labels, want, rng)
    return np.setdiff1d(pool, drawn), drawn


def _at_most(
    pool: np.ndarray, labels: np.ndarray, limit: int, rng: np.random.Generator
) -> np.ndarray:
    return pool if len(pool) <= limit else _stratified(pool, labels, limit, rng)


def _stratified(
    pool: np.ndarray, labels: np.ndarray, want: int, rng: np.random.Generator
) -> np.ndarray:
    """Return `want` items of the pool: every class is dealt out evenly through an order, and the front of
    it is taken."""
    shuffled = pool[rng.permutation(len(pool))]
    classes = labels[shuffled]
    place = np.empty(len(shuffled))
    for c in np.unique(classes):
        at = np.flatnonzero(classes == c)
        place[at] = (np.arange(len(at)) + rng.random()) / len(at)
    return shuffled[np.argsort(place, kind="stable")[:want]]
