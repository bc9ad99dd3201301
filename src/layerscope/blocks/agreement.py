"""The agreement of a smaller model's vectors with those of the whole one.

Without queries, all similarities between two texts are compared. With queries, those between each
query and all documents are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from layerscope.choose.judges.agreement import NEIGHBORS, Neighborhoods, similarities

DRAWS = 200


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
        head = TextSet.of(documents[: count - queries], self.texts[:queries])
        tail = TextSet.of(documents[count - queries :], self.texts[queries : self.queries])
        return head, tail


@dataclass(frozen=True)
class Agreement:
    """The agreement of two models on some texts.

    `value` is the correlation of similarities, `draws` are the same on resampled texts, and
    `neighbors` is the share of a text's nearest texts that are the same.
    """

    value: float
    draws: np.ndarray
    neighbors: float


def compare_vectors(
    whole: np.ndarray, smaller: np.ndarray, queries: int = 0, seed: int = 0
) -> Agreement:
    """Compare vectors of the same texts, of which the first `queries` are queries."""
    value, draws = measure_agreement(whole, smaller, queries, seed=seed)
    return Agreement(value, draws, shared_neighbors(whole, smaller, queries))


def closeness(whole: np.ndarray, smaller: np.ndarray, queries: int = 0) -> float:
    """Return what the search maximizes: the correlation of the similarities, plus the mean cosine
    of a text's two vectors (2 at most).

    >>> rows = np.eye(4)
    >>> closeness(rows, rows)
    2.0
    """
    cosine = float((whole * smaller).sum(1).mean())
    if queries:
        return float(np.mean(query_correlations(whole, smaller, queries))) + cosine
    above = np.triu_indices(len(whole), 1)
    pairs = [(rows @ rows.T)[above] for rows in (whole, smaller)]
    if np.ptp(pairs[0]) == 0:
        return float(np.ptp(pairs[1]) == 0) + cosine
    return float(np.corrcoef(*pairs)[0, 1]) + cosine


def query_correlations(whole: np.ndarray, smaller: np.ndarray, queries: int) -> np.ndarray:
    """Return for each query the correlation (queries,) of its similarities to all documents."""
    products = []
    for rows in (whole, smaller):
        similarity = (rows[:queries] @ rows[queries:].T).astype(np.float64)
        products.append(similarity - similarity.mean(1, keepdims=True))
    lengths = np.linalg.norm(products[0], axis=1) * np.linalg.norm(products[1], axis=1)
    correlations: np.ndarray = (products[0] * products[1]).sum(1) / np.maximum(lengths, 1e-30)
    return correlations


def measure_agreement(
    whole: np.ndarray, smaller: np.ndarray, queries: int = 0, draws: int = DRAWS, seed: int = 0
) -> tuple[float, np.ndarray]:
    """Return the correlation of similarities, and the same on resamples (draws,).

    Without queries: of all similarities between two different texts, texts resampled. With queries:
    the mean over queries of `query_correlations`, queries resampled.
    """
    count = queries or len(whole)
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(count, np.full(count, 1 / count), draws)
    if queries:
        correlations = query_correlations(whole, smaller, queries)
        return float(correlations.mean()), weights / queries @ correlations
    weights = np.vstack([np.ones(count), weights]).astype(np.float64)
    whole_products, smaller_products = (
        rows.astype(np.float64) @ rows.T for rows in (whole, smaller)
    )
    for matrix in (whole_products, smaller_products):
        np.fill_diagonal(matrix, 0.0)
    pairs = weights.sum(1) ** 2 - (weights**2).sum(1)

    def mean(matrix: np.ndarray) -> np.ndarray:
        """Return the weighted mean over pairs under each resample."""
        total: np.ndarray = ((weights @ matrix) * weights).sum(1) / pairs
        return total

    first_mean = mean(whole_products)
    second_mean = mean(smaller_products)
    covariance = mean(whole_products * smaller_products) - first_mean * second_mean
    variance = (mean(whole_products**2) - first_mean**2) * (
        mean(smaller_products**2) - second_mean**2
    )
    correlation = covariance / np.sqrt(np.maximum(variance, 1e-30))
    return float(correlation[0]), correlation[1:]


def shared_neighbors(whole: np.ndarray, smaller: np.ndarray, queries: int = 0) -> float:
    """Return the share of a text's nearest texts (a query's nearest documents) by the whole model
    that are its nearest by the other."""
    if not queries:
        reference = Neighborhoods.of(similarities(whole))
        return float(reference.overlap(similarities(smaller)).mean())
    count = min(NEIGHBORS, len(whole) - queries)
    nearest = [
        np.argsort(-(rows[:queries] @ rows[queries:].T), axis=1)[:, :count]
        for rows in (whole, smaller)
    ]
    shared = [len(np.intersect1d(*rows)) / count for rows in zip(*nearest, strict=True)]
    return float(np.mean(shared))
