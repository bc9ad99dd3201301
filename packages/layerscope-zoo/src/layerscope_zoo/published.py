"""Compare the data of a task with MTEB's own split, by the statistics that mteb publishes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any


def agrees_with_published(task: Any) -> tuple[bool | None, str]:
    """Return True, False or None (no statistics), and the reason.

    Rows, characters and labels (or the mean score) are compared for every split in use. The order
    is not compared, since mteb does not publish it.
    """
    published = task.metadata.descriptive_stats
    if not published:
        return None, "mteb has no statistics of this task"
    train = getattr(task, "train_split", None)
    for subset in task.hf_subsets:
        splits = task.dataset.get(subset, task.dataset)
        for split in (*task.eval_splits, *([train] if train in splits else [])):
            expected = published.get(split)
            if expected is not None and task.metadata.is_multilingual:
                expected = expected.get("hf_subset_descriptive_stats", {}).get(subset)
            if expected is None:
                return None, f"mteb has no statistics of the split {split!r}"
            for figure, actual in _statistics(task, splits[split]).items():
                expected_value = _published_value(expected, figure)
                if expected_value is not None and not _same(actual, expected_value):
                    shown = (
                        "" if isinstance(actual, dict) else f": {actual}, MTEB has {expected_value}"
                    )
                    return False, f"split {split!r} differs in its {figure}{shown}"
    return True, "rows, characters and labels equal mteb's statistics"


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
    texts = list(data[task.input_column_name])
    labels = list(data[task.label_column_name])
    if texts and isinstance(texts[0], list):
        texts = [text for group in texts for text in group]
        labels = [label for group in labels for label in group]
    return texts, labels


def _pair(data: Any, column_a: str, column_b: str) -> dict[str, Any]:
    return {
        "rows": len(data),
        "characters": _characters(data[column_a]) + _characters(data[column_b]),
    }


def _labels(labels: Iterable[Any]) -> dict[str, Any]:
    return {"labels": dict(Counter(str(label) for label in labels))}


def _characters(texts: Iterable[str]) -> int:
    return sum(map(len, texts))


# the places of each figure in mteb's statistics, which depend on the task type and the version
_PUBLISHED = {
    "rows": ("num_samples",),
    "characters": ("text_statistics.total_text_length", "number_of_characters"),
    "queries": ("num_queries",),
    "documents": ("num_documents",),
    "query characters": ("queries_text_statistics.total_text_length",),
    "labels": ("label_statistics.labels", "labels_statistics.labels"),
    "mean score": ("label_statistics.avg_score", "labels_statistics.avg_score"),
}


def _published_value(stats: Mapping[str, Any], figure: str) -> Any:
    """Return a figure of mteb's statistics, or None if they do not have it."""
    for path in _PUBLISHED[figure]:
        value: Any = stats
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None and value != {}:
            if figure == "labels":
                return {key: label["count"] for key, label in value.items()}
            return value
    return None


def _same(actual: Any, expected: Any) -> bool:
    if isinstance(actual, float):
        return math.isclose(actual, expected, rel_tol=1e-9)
    return bool(actual == expected)
