"""Standard errors of spectral quantities: leave out one fold of prompts at a time.

A spectrum is far from linear in the weight of one prompt when N ≤ D, and a resample with replacement has a lower rank than the
data; leaving prompts out has neither fault (docs/decisions/intervals.md). Prompts go to folds by their canonical order, so
batches do not matter.
"""

from __future__ import annotations

FOLDS = 20


def n_folds(n: int) -> int:
    """How many folds n prompts are split into: each is left out once. A single prompt cannot be left out."""
    return min(FOLDS, n) if n > 1 else 0
