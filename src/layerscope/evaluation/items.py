"""What each item of a task contributes to its score, from mteb's own predictions: enough to resample items."""

from __future__ import annotations

from typing import Any

import numpy as np

from layerscope.evaluation.uncertainty import Items


def items_of(task: Any, split: str, entry: dict[str, Any], told: Any) -> Items | None:
    """The items of one split and subset; None where the score is not made of items (then it has no paired interval).

    `entry` is mteb's result, `told` its predictions.
    """
    maker = {
        "STS": _pairs_with_scores,
        "PairClassification": _labelled_pairs,
        "Classification": _classified,
        "Reranking": _ranked,
        "Clustering": _clustered,
    }.get(task.metadata.type)
    return None if maker is None else maker(task, split, entry, told)


def _data(task: Any, split: str, subset: str) -> Any:
    held = task.dataset
    return held[subset][split] if subset in held else held[split]


def _pairs_with_scores(task: Any, split: str, entry: dict[str, Any], told: Any) -> Items | None:
    if not told or "spearman" not in task.metadata.main_score:
        return None
    gold = np.array(_data(task, split, entry["hf_subset"])["score"], dtype=np.float64)
    return Items("spearman", np.array(told["cosine_scores"], dtype=np.float64), gold)


def _labelled_pairs(task: Any, split: str, entry: dict[str, Any], told: Any) -> Items | None:
    if not told or not task.metadata.main_score.endswith("ap"):
        return None
    labels = np.array(_data(task, split, entry["hf_subset"])[task.label_column_name], dtype=np.float64).ravel()
    measures = [np.array(told["cosine_scores"], dtype=np.float64)]
    if task.metadata.main_score.startswith("max_"):  # the best of several measures of similarity
        measures += [np.array(told[name], dtype=np.float64) for name in ("similarity_scores", "dot_scores") if name in told]
        measures += [-np.array(told[name], dtype=np.float64) for name in ("euclidean_distances", "manhattan_distances")]
    found = [Items("ap", values, labels) for values in measures if len(values) == len(labels)]
    return max(found, key=lambda items: items.score()) if found else None


def _classified(task: Any, split: str, entry: dict[str, Any], told: Any) -> Items | None:
    """Share of the experiments in which each text was classified right."""
    if not told or task.metadata.main_score != "accuracy":
        return None
    gold = np.array(_data(task, split, entry["hf_subset"])[task.label_column_name])
    right = [np.array(experiment) == gold for experiment in told if len(experiment) == len(gold)]
    return Items("mean", np.mean(right, axis=0)) if right else None


def _ranked(task: Any, split: str, entry: dict[str, Any], told: Any) -> Items | None:
    """Average precision of each query."""
    if not told or not task.metadata.main_score.startswith("map"):
        return None
    relevant = _data(task, split, entry["hf_subset"])["relevant_docs"]
    values = []
    for query, scores in sorted(told.items()):
        wanted = {doc for doc, grade in relevant.get(query, {}).items() if grade > 0}
        if wanted:
            ranked = sorted(scores, key=lambda doc: (scores[doc], doc), reverse=True)  # equal scores: as mteb orders them
            hits = np.cumsum([doc in wanted for doc in ranked])
            precise = [hits[i] / (i + 1) for i, doc in enumerate(ranked) if doc in wanted]
            values.append(sum(precise) / len(wanted))
    return Items("mean", np.array(values)) if len(values) > 1 else None


def _clustered(task: Any, split: str, entry: dict[str, Any], told: Any) -> Items | None:
    """One value per set or draw, as mteb reports them."""
    found = entry.get("v_measures")
    if isinstance(found, dict):
        found = [value for level in found.values() for value in level]
    return Items("mean", np.array(found, dtype=np.float64)) if found and len(found) > 1 else None
