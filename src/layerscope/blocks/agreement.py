"""How well the vectors of a smaller model agree with those of the whole one.

Without queries, all similarities between two texts are compared. With queries, those between each
query and all documents are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from layerscope.choose.judges.agreement import Neighborhoods, similarities

DRAWS = 200
NEAREST = 10
"""Documents that are compared for each query."""


@dataclass(frozen=True)
class TextSet:
    """Texts, of which the first `queries` are queries and the others their documents."""

    texts: tuple[str, ...]
    queries: int = 0

    @classmethod
    def of(cls, texts: Sequence[str], queries: Sequence[str] = ()) -> TextSet:
        """Put queries before texts."""
        return cls((*queries, *texts), len(queries))

    def __len__(self) -> int:
        return len(self.texts)

    def first(self, count: int) -> TextSet:
        """Return some of the texts; half of them queries, if there are as many."""
        queries = min(self.queries, count // 2)
        documents = self.texts[self.queries : self.queries + count - queries]
        return TextSet.of(documents, self.texts[:queries])

    def cut(self, count: int) -> tuple[TextSet, TextSet]:
        """Divide into the first `count` texts and the rest; of queries the same share."""
        queries = round(self.queries * count / max(1, len(self)))
        documents = self.texts[self.queries :]
        aside = count - queries
        return (
            TextSet.of(documents[:aside], self.texts[:queries]),
            TextSet.of(documents[aside:], self.texts[queries : self.queries]),
        )


def closeness(whole: np.ndarray, other: np.ndarray, queries: int = 0) -> float:
    """Return what the search maximizes: the correlation of the similarities, plus the mean cosine
    of a text's two vectors (2 at most).

    >>> rows = np.eye(4)
    >>> closeness(rows, rows)
    2.0
    """
    cosine = float((whole * other).sum(1).mean())
    if queries:
        return float(np.mean(query_correlations(whole, other, queries))) + cosine
    above = np.triu_indices(len(whole), 1)
    pairs = [(rows @ rows.T)[above] for rows in (whole, other)]
    if np.ptp(pairs[0]) == 0:
        correlation = float(np.ptp(pairs[1]) == 0)
    else:
        correlation = float(np.corrcoef(*pairs)[0, 1])
    return correlation + cosine


def query_correlations(whole: np.ndarray, other: np.ndarray, queries: int) -> np.ndarray:
    """Return for each query the correlation (queries,) of its similarities to all documents."""
    ours = (other[:queries] @ other[queries:].T).astype(np.float64)
    theirs = (whole[:queries] @ whole[queries:].T).astype(np.float64)
    ours -= ours.mean(1, keepdims=True)
    theirs -= theirs.mean(1, keepdims=True)
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    correlations: np.ndarray = (ours * theirs).sum(1) / np.maximum(lengths, 1e-30)
    return correlations


def ranking_agreement(
    whole: np.ndarray, other: np.ndarray, queries: int, draws: int = DRAWS, seed: int = 0
) -> tuple[float, np.ndarray]:
    """Return the mean over queries of `query_correlations`, and the same under resamples of the
    queries."""
    correlations = query_correlations(whole, other, queries)
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(queries, np.full(queries, 1 / queries), draws) / queries
    return float(correlations.mean()), weights @ correlations


def similarity_agreement(
    whole: np.ndarray, other: np.ndarray, draws: int = DRAWS, seed: int = 0
) -> tuple[float, np.ndarray]:
    """Return the correlation of all similarities between two different texts with the whole
    model's, and the same under resamples of the texts."""
    count = len(whole)
    weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), draws)
    weights = np.vstack([np.ones(count), weights]).astype(np.float64)
    first, second = (rows.astype(np.float64) @ rows.T for rows in (whole, other))
    for matrix in (first, second):
        np.fill_diagonal(matrix, 0.0)
    pairs = weights.sum(1) ** 2 - (weights**2).sum(1)

    def mean(matrix: np.ndarray) -> np.ndarray:
        total: np.ndarray = ((weights @ matrix) * weights).sum(1) / pairs
        return total

    means = mean(first), mean(second)
    covariance = mean(first * second) - means[0] * means[1]
    variances = mean(first**2) - means[0] ** 2, mean(second**2) - means[1] ** 2
    correlation = covariance / np.sqrt(np.maximum(variances[0] * variances[1], 1e-30))
    return float(correlation[0]), correlation[1:]


def measure_agreement(
    whole: np.ndarray, other: np.ndarray, queries: int, draws: int = DRAWS, seed: int = 0
) -> tuple[float, np.ndarray]:
    """Return the agreement of rankings if there are queries, else that of all similarities."""
    if queries:
        return ranking_agreement(whole, other, queries, draws, seed)
    return similarity_agreement(whole, other, draws, seed)


def shared_neighbors(whole: np.ndarray, other: np.ndarray, queries: int = 0) -> float:
    """Return which share of a text's nearest texts (a query's nearest documents) by the whole model
    are its nearest by the other."""
    if queries:
        count = min(NEAREST, len(whole) - queries)
        nearest = [
            np.argsort(-(rows[:queries] @ rows[queries:].T), axis=1)[:, :count]
            for rows in (whole, other)
        ]
        shared = [len(np.intersect1d(*rows)) / count for rows in zip(*nearest, strict=True)]
        return float(np.mean(shared))
    reference = Neighborhoods.of(similarities(whole))
    return float(torch.mean(reference.overlap(similarities(other))))
