"""p-values of many tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from layerscope.core.statistics import Array


def holm(p: ArrayLike) -> Array:
    """Return Holm's adjusted p-values.

    Rejecting those below α keeps the chance of one false finding below α.
    """
    values = np.asarray(p, float)
    order = np.argsort(values)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(
        np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)), 1.0
    )
    return adjusted


def min_p(observed: Array, nulls: Array) -> Array:
    """Return Westfall and Young's step-down adjusted p-values of several statistics (m,), from
    their values under a null (m, draws).

    Larger is stronger. The draws are common to all statistics, so those that move together are
    corrected less than independent ones. The same test twice counts as one test:

    >>> drawn = np.random.default_rng(0).normal(size=999)
    >>> first, second = min_p(np.array([2.5, 2.5]), np.stack([drawn, drawn]))
    >>> bool(first == second < holm([first, first])[0])
    True
    """
    # the observed value is ranked as one more draw, so that draws may rank first as well
    rows = np.column_stack([observed, nulls])
    ranks = np.stack([rows.shape[1] - np.searchsorted(np.sort(row), row - 1e-12) for row in rows])
    order = np.argsort(ranks[:, 0], kind="stable")
    # of each statistic and those with a larger p
    smallest = np.minimum.accumulate(ranks[order][::-1], axis=0)[::-1]
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate((smallest <= smallest[:, :1]).mean(axis=1))
    return adjusted
