"""Folds for cross-validation: every class spread over them as evenly as it goes."""

from __future__ import annotations

import numpy as np

OUTER = 3
"""Folds of the rounds that judge a choice: it is made on two thirds of the examples and measured on the third."""


def stratified_folds(labels: np.ndarray, folds: int, repeats: int, seed: int) -> list[np.ndarray]:
    """Fold numbers (n,) for each repetition.

    >>> [int((fold == k).sum()) for fold in stratified_folds(np.array([0, 0, 0, 1, 1, 1]), 3, 1, 0) for k in range(3)]
    [2, 2, 2]
    """
    rng = np.random.default_rng([seed, len(labels), folds])
    out = []
    for _ in range(repeats):
        assigned = np.empty(len(labels), dtype=np.int64)
        start = 0
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            assigned[members] = (start + np.arange(len(members))) % folds
            start += len(members)  # the next class goes on where this one ended, so that folds are of one size
        out.append(assigned)
    return out


def tested_in_rounds(labels: np.ndarray, repeats: int, seed: int) -> np.ndarray:
    """Which examples each round leaves out (rounds, n): every example in one round of each repetition."""
    splits = stratified_folds(labels, OUTER, repeats, seed)
    return np.stack([folds == fold for folds in splits for fold in range(OUTER)])
