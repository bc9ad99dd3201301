"""Whether the data of a task are MTEB's own split, told by the statistics that mteb carries."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any


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
