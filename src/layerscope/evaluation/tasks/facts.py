"""What exactly a loaded task holds: counts, a fingerprint, and whether the data are MTEB's own
split."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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


def agrees_with_published(task: Any) -> tuple[bool | None, str]:
    """True, False or None (nothing to compare with), and why.

    Rows, characters and labels (or the mean score) are compared for every split in use. The order
    is not: mteb does not publish it.
    """
    published = task.metadata.descriptive_stats
    if not published:
        return None, "mteb carries no statistics of this task"
    train = getattr(task, "train_split", None)
    for subset in task.hf_subsets:
        splits = task.dataset.get(subset, task.dataset)
        for split in (*task.eval_splits, *([train] if train in splits else [])):
            expected = published.get(split)
            if expected is not None and task.metadata.is_multilingual:
                expected = expected.get("hf_subset_descriptive_stats", {}).get(subset)
            if expected is None:
                return None, f"mteb carries no statistics of the split {split!r}"
            for what, actual in _statistics(task, splits[split]).items():
                wanted = _published_value(expected, what)
                if wanted is not None and not _same(actual, wanted):
                    shown = "" if isinstance(actual, dict) else f": {actual}, MTEB has {wanted}"
                    return False, f"split {split!r} differs in its {what}{shown}"
    return True, "rows, characters and labels equal mteb's statistics"


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


def _statistics(task: Any, data: Any) -> dict[str, Any]:
    kind = task.metadata.type
    if isinstance(data, Mapping):
        return {
            "queries": len(data["queries"]),
            "documents": len(data["corpus"]),
            "query characters": _characters(data["queries"]["text"]),
        }
    if kind == "STS":
        scores = list(data["score"])
        return _pair(data, *task.column_names) | {"mean score": sum(scores) / len(scores)}
    if kind == "PairClassification":
        return _pair(data, task.input1_column_name, task.input2_column_name) | _labels(
            data[task.label_column_name]
        )
    if kind not in _LABELED:
        return {"rows": len(data)}
    texts, labels = _labeled(task, data)
    return {"rows": len(texts), "characters": _characters(texts)} | _labels(labels)


_LABELED = ("Classification", "Clustering")


def _labeled(task: Any, data: Any) -> tuple[list[Any], list[Any]]:
    texts, labels = list(data[task.input_column_name]), list(data[task.label_column_name])
    if texts and isinstance(texts[0], list):
        texts, labels = [t for part in texts for t in part], [x for part in labels for x in part]
    return texts, labels


def _pair(data: Any, first: str, second: str) -> dict[str, Any]:
    return {"rows": len(data), "characters": _characters(data[first]) + _characters(data[second])}


def _labels(labels: Iterable[Any]) -> dict[str, Any]:
    return {"labels": dict(Counter(str(label) for label in labels))}


def _characters(texts: Iterable[str]) -> int:
    return sum(map(len, texts))


_PUBLISHED = {  # where mteb's statistics have a figure: names differ between task types and versions
    "rows": ("num_samples",),
    "characters": ("text_statistics.total_text_length", "number_of_characters"),
    "queries": ("num_queries",),
    "documents": ("num_documents",),
    "query characters": ("queries_text_statistics.total_text_length",),
    "labels": ("label_statistics.labels", "labels_statistics.labels"),
    "mean score": ("label_statistics.avg_score", "labels_statistics.avg_score"),
}


def _published_value(stats: Mapping[str, Any], what: str) -> Any:
    """The same figure in mteb's statistics; None where it is not there."""
    for path in _PUBLISHED[what]:
        value: Any = stats
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None and value != {}:
            return (
                {key: label["count"] for key, label in value.items()} if what == "labels" else value
            )
    return None


def _same(actual: Any, wanted: Any) -> bool:
    return (
        math.isclose(actual, wanted, rel_tol=1e-9)
        if isinstance(actual, float)
        else bool(actual == wanted)
    )
