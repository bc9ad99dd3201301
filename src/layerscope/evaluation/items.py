"""Per-item contributions to a task's score, from mteb's predictions, and scores on resampled
items."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from layerscope.core.scores import DRAWS, Scores
from layerscope.core.statistics import average_precision, bootstrap_rows, spearman

__all__ = ["ItemScores"]

_DRAWN_AT_ONCE = 2**18  # items: their ranks take a few dozen bytes each
_LEAST_DRAWS = 16  # fewer at once take longer each

Rule = Literal["mean", "spearman", "ap"]
"""How items make a score: a mean of per-item values, Spearman's ρ against a gold value, average
precision of a ranking."""

_SCORES = {"spearman": spearman, "ap": average_precision}


@dataclass(frozen=True)
class ItemScores:
    """Per-item contributions (n,) and, where the rule needs one, the gold value of each item."""

    rule: Rule
    values: np.ndarray
    gold: np.ndarray | None = None

    def score(self, rows: np.ndarray | slice = slice(None)) -> float:
        """Return the score of some items, drawn with repetition."""
        values = self.values[rows]
        if self.gold is None:
            return float(values.mean())
        return float(_SCORES[self.rule](values, self.gold[rows]))


def resampled(items: Sequence[ItemScores], seed: int = 0, draws: int = DRAWS) -> np.ndarray:
    """Return scores (len(items), draws) on the same resamples of items: of every layer, or of every
    candidate of a task."""
    reference = items[0]
    values = np.stack([item.values for item in items])
    count = len(reference.values)
    rows = bootstrap_rows(count, draws, [seed, count])

    def scores_on(draws_rows: np.ndarray) -> np.ndarray:
        weights = np.stack([np.bincount(row, minlength=count) for row in draws_rows]).astype(
            np.float64
        )
        if reference.gold is None:
            return values @ weights.T / count
        return _SCORES[reference.rule](values, reference.gold, weights)

    size = max(1, min(draws // _LEAST_DRAWS, rows.size // _DRAWN_AT_ONCE))
    # small parts: Ctrl-C waits for no more than these
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        return np.concatenate(list(threads.map(scores_on, np.array_split(rows, size))), axis=1)


def same_items(items: Sequence[ItemScores]) -> bool:
    """Return whether layers were scored on the same items, so that they can be paired."""
    reference = items[0]
    return all(
        item.rule == reference.rule
        and len(item.values) == len(reference.values)
        and np.array_equal(item.gold, reference.gold)  # type: ignore[arg-type]
        for item in items
    )


def score_candidates(
    scores: Sequence[float], items: Sequence[ItemScores | None], seed: int = 0
) -> Scores:
    """Return scores of layers on one task with their resamples, for those whose items are known and
    the same."""
    score = np.asarray(scores, dtype=np.float64)
    items_at = {
        i: item for i, item in enumerate(items) if item is not None and np.isfinite(score[i])
    }
    if not items_at or not same_items(list(items_at.values())):
        return Scores(score)
    draws = np.full((len(score), DRAWS), np.nan)
    draws[list(items_at)] = resampled(list(items_at.values()), seed)
    return Scores(score, draws)


def items_of(task: Any, split: str, entry: dict[str, Any], predictions: Any) -> ItemScores | None:
    """Return the items of one split and subset; None where the score is not made of items (then it
    has no paired interval).

    `entry` is mteb's result of that split and subset.
    """
    task_type = task.metadata.type
    metric = task.metadata.main_score
    if task_type == "Clustering":  # one value per set or draw, as mteb reports them
        values = entry.get("v_measures")
        if isinstance(values, dict):
            values = [value for level in values.values() for value in level]
        return ItemScores("mean", _numbers(values)) if values and len(values) > 1 else None
    if not predictions:
        return None
    data = task.dataset
    data = data.get(entry["hf_subset"], data)[split]
    if task_type == "STS" and "spearman" in metric:
        scores = _numbers(predictions["cosine_scores"])
        return ItemScores("spearman", scores, _numbers(data["score"]))
    if task_type == "PairClassification" and metric.endswith("ap"):
        return _labeled_pairs(_numbers(data[task.label_column_name]).ravel(), metric, predictions)
    if task_type == "Classification" and metric == "accuracy":
        return _classified(np.array(data[task.label_column_name]), predictions)
    if task_type == "Reranking" and metric.startswith("map"):
        return _ranked(data["relevant_docs"], predictions)
    return None


def _numbers(values: Any) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def _labeled_pairs(labels: np.ndarray, metric: str, predictions: Any) -> ItemScores | None:
    signs = {"cosine_scores": 1}
    if metric.startswith("max_"):  # the best of several measures of similarity
        signs |= dict.fromkeys(("similarity_scores", "dot_scores"), 1)
        signs |= dict.fromkeys(("euclidean_distances", "manhattan_distances"), -1)
    rankings = [
        ItemScores("ap", sign * _numbers(predictions[name]), labels)
        for name, sign in signs.items()
        if len(predictions.get(name, ())) == len(labels)
    ]
    return max(rankings, key=lambda items: items.score(), default=None)


def _classified(gold: np.ndarray, predictions: Any) -> ItemScores | None:
    """Return the share of the experiments in which each text was classified right."""
    right = [
        np.array(experiment) == gold for experiment in predictions if len(experiment) == len(gold)
    ]
    return ItemScores("mean", np.mean(right, axis=0)) if right else None


def _ranked(relevant: Any, predictions: Any) -> ItemScores | None:
    """Return the average precision of each query."""
    values = []
    for query, scores in sorted(predictions.items()):
        targets = {doc for doc, grade in relevant.get(query, {}).items() if grade > 0}
        if targets:
            # equal scores: as mteb orders them
            ranked = sorted(scores, key=lambda doc: (scores[doc], doc), reverse=True)
            is_hit = np.array([doc in targets for doc in ranked])
            precision = np.cumsum(is_hit) / np.arange(1, len(ranked) + 1)
            values.append(float(precision[is_hit].sum()) / len(targets))
    return ItemScores("mean", np.array(values)) if len(values) > 1 else None
