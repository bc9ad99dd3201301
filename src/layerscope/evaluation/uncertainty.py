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

from layerscope.core.statistics import Interval, average_precision, bootstrap_rows, spearman

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
