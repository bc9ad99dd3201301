"""Limits on the blocks that run, for a choice of a layer."""

from __future__ import annotations

import math

from layerscope.choose.types import Limits
from layerscope.errors import InvalidValueError

TOLERANCE = 1.0
"""The points that a choice with fewer blocks may lose if no tolerance is given."""


def allowed_blocks(max_blocks: float | None, n_blocks: int) -> int:
    """Return the most blocks that may run; at least one.

    >>> allowed_blocks(0.5, 25)
    12
    """
    return n_blocks if max_blocks is None else max(1, math.floor(max_blocks * n_blocks + 1e-9))


def block_limits(max_blocks: float | None, tolerance: float | None, n_blocks: int) -> Limits:
    """Return the limits of a choice whose costs are shares of the blocks.

    Without a tolerance all candidates count as near that are tied with the best.
    """
    if max_blocks is not None and not 0 < max_blocks <= 1:
        raise InvalidValueError(
            "max_blocks is a share of the blocks above 0 and at most 1, such as 0.5, not "
            f"{max_blocks:g}."
        )
    if tolerance is not None and not tolerance >= 0:
        raise InvalidValueError(f"a tolerance is 0 points or more, not {tolerance:g}.")
    if max_blocks is None and tolerance is None:
        return Limits()
    return Limits(
        budget=allowed_blocks(max_blocks, n_blocks) / n_blocks,
        tolerance=TOLERANCE if tolerance is None else tolerance,
        ties=tolerance is None,
        same_readout=True,
    )
