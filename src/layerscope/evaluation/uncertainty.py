"""How sure a difference between two layers is: both scored on the same resampled items.

What a task's items are depends on its type: pairs (STS, pair classification), test texts (classification), queries (reranking),
sets or draws (clustering). `Items` holds what each item contributes, so that the score of any resample follows without the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

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
        return _spearman(values, gold) if self.rule == "spearman" else _average_precision(values, gold)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, ties at their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts + 1) / 2)[inverse]


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    size = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / size if size > 0 else math.nan


def _average_precision(scores: np.ndarray, relevant: np.ndarray) -> float:
    """Area under precision over recall, ties taken together."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(relevant[order])
    if hits[-1] == 0:
        return math.nan
    edge = np.append(np.diff(scores[order]) != 0, True)  # the last of each run of equal scores
    precision, recall = hits[edge] / (np.flatnonzero(edge) + 1), hits[edge] / hits[-1]
    return float((np.diff(recall, prepend=0.0) * precision).sum())


@dataclass(frozen=True)
class Gain:
    """Score of a layer minus the reference's on the same items, with its 95 % interval."""

    value: float
    low: float
    high: float


def resampled(items: Mapping[int, Items], seed: int = 0, resamples: int = RESAMPLES) -> dict[int, np.ndarray]:
    """Scores of every layer on the same resamples of items: {layer: (resamples,)}."""
    count = len(next(iter(items.values())).values)
    rng = np.random.default_rng([seed, count])
    draws = [rng.integers(0, count, count) for _ in range(resamples)]
    return {layer: np.array([item.score(draw) for draw in draws]) for layer, item in items.items()}


def gains(scores: Mapping[int, float], drawn: Mapping[int, np.ndarray], reference: int) -> dict[int, Gain]:
    """Gain of every layer over a reference layer."""
    out = {}
    for layer, draws in drawn.items():
        low, high = np.nanquantile(draws - drawn[reference], [0.025, 0.975])
        out[layer] = Gain(scores[layer] - scores[reference], float(low), float(high))
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
