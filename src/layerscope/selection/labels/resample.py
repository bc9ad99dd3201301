"""Resampling the examples: how scores move when other examples had been labelled."""

from __future__ import annotations

import numpy as np

DRAWS = 300


def bootstrap_weights(count: int, groups: np.ndarray | None, draws: int, seed: int) -> np.ndarray:
    """How often each example counts in each draw (draws, n); examples of a class are drawn among themselves."""
    rng = np.random.default_rng([seed, count, draws])
    weights = np.zeros((draws, count))
    for group in [None] if groups is None else np.unique(groups):
        members = np.arange(count) if group is None else np.flatnonzero(groups == group)
        weights[:, members] = rng.multinomial(len(members), np.full(len(members), 1 / len(members)), draws)
    return weights
