"""Giving up a little for a shallower model: the earliest layer near the best one among those
allowed."""

from __future__ import annotations

import math

import numpy as np

from layerscope.errors import InvalidValueError, LayerscopeError

TOLERANCE = 1.0  # points


def check(max_blocks: float | None, tolerance: float | None) -> None:
    """Refuse what makes no sense."""
    if max_blocks is not None and not 0 < max_blocks <= 1:
        raise InvalidValueError(
            f"max_blocks is a share of the blocks above 0 and at most 1, such as 0.5, not {max_blocks:g}."
        )
    if tolerance is not None and not tolerance >= 0:
        raise InvalidValueError(f"a tolerance is 0 points or more, not {tolerance:g}.")


def allowed_blocks(max_blocks: float | None, n_blocks: int) -> int:
    """The most blocks that may be run; at least one.

    >>> allowed_blocks(0.5, 25)
    12
    """
    return n_blocks if max_blocks is None else max(1, math.floor(max_blocks * n_blocks + 1e-9))


def earliest(
    gain: np.ndarray,
    best: int,
    tied: tuple[int, ...],
    max_blocks: float | None,
    tolerance: float | None,
) -> tuple[int, str | None]:
    """The earliest layer within the tolerance of the best (or tied with it) and within the
    max_blocks, and a warning if none is.

    Layers without a known gain (−inf, not a number) are never taken.
    """
    check(max_blocks, tolerance)
    if max_blocks is None and tolerance is None:
        return best, None
    most = allowed_blocks(max_blocks, len(gain) - 1)
    close = TOLERANCE if tolerance is None else tolerance
    known = [k for k in range(len(gain)) if np.isfinite(gain[k])]
    near = [k for k in known if gain[k] >= gain[best] - close or (tolerance is None and k in tied)]
    inside = [k for k in near if k <= most]
    if inside:
        return min(inside), None
    possible = [k for k in known if k <= most]
    if not possible:
        raise LayerscopeError(
            f"no layer that was looked at is within {most} blocks (max_blocks=). The earliest is {min(known)}."
        )
    layer = max(possible, key=lambda k: (gain[k], -k))
    lost = gain[best] - gain[layer]
    return (
        layer,
        f"no layer within max_blocks= is within {close:g} points of the best: layer {layer} is expected to be {lost:.1f} below.",
    )
