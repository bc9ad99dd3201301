"""Standard errors of spectral quantities: leave out one fold of prompts at a time.

A spectrum is far from linear in the weight of one prompt when N ≤ D, and a resample with replacement has a lower rank than the
data; leaving prompts out has neither fault (docs/decisions/intervals.md). Prompts go to folds by their canonical order, so
batches do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

FOLDS = 20


def n_folds(n: int) -> int:
    """How many folds n prompts are split into: each is left out once. A single prompt cannot be left out."""
    return min(FOLDS, n) if n > 1 else 0


def standard_error(left_out: Sequence[float]) -> float:
    """The jackknife's standard error from the values without each fold; NaN if one is undefined, or if there are but two.

    One of two prompts left out leaves one alone: its spectrum is the same whatever it says.
    """
    g = len(left_out)
    if g < 3 or not all(math.isfinite(v) for v in left_out):
        return math.nan
    mean = math.fsum(left_out) / g
    return math.sqrt((g - 1) / g * math.fsum((v - mean) ** 2 for v in left_out))
