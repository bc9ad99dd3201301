"""How well the vectors of a smaller model agree with those of the whole one."""

from __future__ import annotations

import numpy as np
import torch

from layerscope.selection.judges.agreement import Neighborhoods, similarities

DRAWS = 200


def closeness(whole: np.ndarray, other: np.ndarray) -> float:
    """Return what the search maximizes: the correlation of all similarities between two texts, plus
    the mean cosine of a text's two vectors (2 at most).

    >>> rows = np.eye(4)
    >>> closeness(rows, rows)
    2.0
    """
    above = np.triu_indices(len(whole), 1)
    pairs = [(rows @ rows.T)[above] for rows in (whole, other)]
    if np.ptp(pairs[0]) == 0:
        correlation = float(np.ptp(pairs[1]) == 0)
    else:
        correlation = float(np.corrcoef(*pairs)[0, 1])
    return correlation + float((whole * other).sum(1).mean())


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


def shared_neighbors(whole: np.ndarray, other: np.ndarray) -> float:
    """Return which share of a text's nearest texts by the whole model are its nearest by the
    other."""
    reference = Neighborhoods.of(similarities(whole))
    return float(torch.mean(reference.overlap(similarities(other))))
