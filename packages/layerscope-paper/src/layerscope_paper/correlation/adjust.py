"""p-values of many tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from layerscope.core.statistics import Array


def holm(p: ArrayLike) -> Array:
    """Holm's adjusted p-values: rejecting those below α keeps the chance of one false finding below
    α."""
    values = np.asarray(p, float)
    order = np.argsort(values)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(
        np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)), 1.0
    )
    return adjusted


def min_p(observed: Array, nulls: Array) -> Array:
    """Westfall and Young's step-down adjusted p-values of several statistics (m,), from their
    values under a null (m, draws).

    Larger is stronger. Draws are common to all: statistics that move together are not paid for as
    if they were independent.

    >>> drawn = np.random.default_rng(0).normal(size=999)
    >>> one, other = min_p(np.array([2.5, 2.5]), np.stack([drawn, drawn]))  # twice the same test is one test
    >>> bool(one == other < holm([one, one])[0])
    True
    """
    # what was observed is ranked as one draw more: ranked apart, it would be the only one that can
    # come first of all
    both = np.column_stack([observed, nulls])
    ranks = np.stack([both.shape[1] - np.searchsorted(np.sort(row), row - 1e-12) for row in both])
    order = np.argsort(ranks[:, 0], kind="stable")
    smallest = np.minimum.accumulate(ranks[order][::-1], axis=0)[
        ::-1
    ]  # of each statistic and those with a larger p
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate((smallest <= smallest[:, :1]).mean(axis=1))
    return adjusted
