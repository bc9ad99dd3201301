"""What each item of a task contributes to its score, and how sure a difference between two layers is on resampled items.

What a task's items are depends on its type: pairs (STS, pair classification), test texts (classification), queries (reranking),
sets or draws (clustering). `Items` holds what each item contributes, so that the score of any resample follows without the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from layerscope.core.statistics import Interval, average_precision, bootstrap_rows, spearman
from layerscope.store import checked

RESAMPLES = 500

# how items make a score: a mean of per-item values, Spearman's ρ against a gold value, average precision of a ranking
Rule = Literal["mean", "spearman", "ap"]


@dataclass(frozen=True)
class Items:
    """Per-item contributions (n,) and, where the rule needs one, the gold value of each item."""

    rule: Rule
    values: np.ndarray
    gold: np.ndarray | None = None

    def score(self, chosen: np.ndarray | slice = slice(None)) -> float:
        """The score of some items, drawn with repetition."""
        values = self.values[chosen]
        if self.rule == "mean":
            return float(values.mean())
        assert self.gold is not None
        gold = self.gold[chosen]
        return float(spearman(values, gold) if self.rule == "spearman" else average_precision(values, gold))

    def save(self, file: Path) -> None:
        """Write the items as float32."""
        arrays = {"values": self.values.astype(np.float32), "rule": np.array(self.rule)}
        if self.gold is not None:
            arrays["gold"] = self.gold.astype(np.float32)
        checked.write_arrays(file, arrays)

    @classmethod
    def load(cls, file: Path) -> Items:
        """Read items back."""
        arrays = checked.read_arrays(file)
        gold = arrays["gold"].astype(np.float64) if "gold" in arrays else None
        return cls(str(arrays["rule"]), arrays["values"].astype(np.float64), gold)  # type: ignore[arg-type]


def resampled(items: Mapping[int, Items], seed: int = 0, resamples: int = RESAMPLES) -> dict[int, np.ndarray]:
    """Scores of every layer on the same resamples of items: {layer: (resamples,)}."""
    count = len(next(iter(items.values())).values)
    draws = bootstrap_rows(count, resamples, [seed, count])
    return {layer: np.array([item.score(draw) for draw in draws]) for layer, item in items.items()}


def gains(scores: Mapping[int, float], drawn: Mapping[int, np.ndarray], reference: int) -> dict[int, Interval]:
    """Gain of every layer over a reference layer, with its 95 % interval over the items."""
    out = {}
    for layer, draws in drawn.items():
        low, high = np.nanquantile(draws - drawn[reference], [0.025, 0.975])
        out[layer] = Interval(scores[layer] - scores[reference], float(low), float(high))
    return out


def tied_best(scores: Mapping[int, float], drawn: Mapping[int, np.ndarray]) -> list[int]:
    """The layers that cannot be told from the best one on these items."""
    known = {layer: score for layer, score in scores.items() if math.isfinite(score) and layer in drawn}
    if not known:
        return []
    best = max(known, key=lambda layer: known[layer])
    return sorted(layer for layer in known if np.nanquantile(drawn[best] - drawn[layer], 0.025) <= 0)


def same_items(items: Sequence[Items]) -> bool:
    """Whether layers were scored on the same items, so that they can be paired."""
    return len({len(item.values) for item in items}) == 1


def items_of(task: Any, split: str, entry: dict[str, Any], predictions: Any) -> Items | None:
    """The items of one split and subset; None where the score is not made of items (then it has no paired interval).

    `entry` is mteb's result of that split and subset.
    """
    maker = {
        "STS": _pairs_with_scores,
        "PairClassification": _labelled_pairs,
        "Classification": _classified,
        "Reranking": _ranked,
        "Clustering": _clustered,
    }.get(task.metadata.type)
    return None if maker is None else maker(task, split, entry, predictions)


def _data(task: Any, split: str, subset: str) -> Any:
    data = task.dataset
    return data[subset][split] if subset in data else data[split]


def _pairs_with_scores(task: Any, split: str, entry: dict[str, Any], predictions: Any) -> Items | None:
    if not predictions or "spearman" not in task.metadata.main_score:
        return None
    gold = np.array(_data(task, split, entry["hf_subset"])["score"], dtype=np.float64)
    return Items("spearman", np.array(predictions["cosine_scores"], dtype=np.float64), gold)


def _labelled_pairs(task: Any, split: str, entry: dict[str, Any], predictions: Any) -> Items | None:
    if not predictions or not task.metadata.main_score.endswith("ap"):
        return None
    labels = np.array(_data(task, split, entry["hf_subset"])[task.label_column_name], dtype=np.float64).ravel()
    measures = [np.array(predictions["cosine_scores"], dtype=np.float64)]
    if task.metadata.main_score.startswith("max_"):  # the best of several measures of similarity
        measures += [
            np.array(predictions[name], dtype=np.float64) for name in ("similarity_scores", "dot_scores") if name in predictions
        ]
        measures += [-np.array(predictions[name], dtype=np.float64) for name in ("euclidean_distances", "manhattan_distances")]
    rankings = [Items("ap", values, labels) for values in measures if len(values) == len(labels)]
    return max(rankings, key=lambda items: items.score()) if rankings else None


def _classified(task: Any, split: str, entry: dict[str, Any], predictions: Any) -> Items | None:
    """Share of the experiments in which each text was classified right."""
    if not predictions or task.metadata.main_score != "accuracy":
        return None
    gold = np.array(_data(task, split, entry["hf_subset"])[task.label_column_name])
    right = [np.array(experiment) == gold for experiment in predictions if len(experiment) == len(gold)]
    return Items("mean", np.mean(right, axis=0)) if right else None


def _ranked(task: Any, split: str, entry: dict[str, Any], predictions: Any) -> Items | None:
    """Average precision of each query."""
    if not predictions or not task.metadata.main_score.startswith("map"):
        return None
    relevant = _data(task, split, entry["hf_subset"])["relevant_docs"]
    values = []
    for query, scores in sorted(predictions.items()):
        wanted = {doc for doc, grade in relevant.get(query, {}).items() if grade > 0}
        if wanted:
            ranked = sorted(scores, key=lambda doc: (scores[doc], doc), reverse=True)  # equal scores: as mteb orders them
            hits = np.cumsum([doc in wanted for doc in ranked])
            precise = [hits[i] / (i + 1) for i, doc in enumerate(ranked) if doc in wanted]
            values.append(sum(precise) / len(wanted))
    return Items("mean", np.array(values)) if len(values) > 1 else None


def _clustered(task: Any, split: str, entry: dict[str, Any], predictions: Any) -> Items | None:
    """One value per set or draw, as mteb reports them."""
    values = entry.get("v_measures")
    if isinstance(values, dict):
        values = [value for level in values.values() for value in level]
    return Items("mean", np.array(values, dtype=np.float64)) if values and len(values) > 1 else None
