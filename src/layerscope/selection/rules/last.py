"""The last layer: what everyone reads by default, and what every gain is measured against."""

from __future__ import annotations

import numpy as np

from layerscope.selection.evidence import Evidence
from layerscope.selection.rules.base import Answer, Rule, register


def _last(evidence: Evidence) -> Answer:
    return Answer(evidence.n_blocks, "the last layer, as asked.")


@register("last", "the last layer")
def make(_: float | None) -> Rule:
    """The rule."""
    return _last


def nearest(depth: float, n_blocks: int) -> int:
    """The layer at a depth; of two equally near the later one.

    >>> nearest(0.8, 24), nearest(0.75, 6)
    (19, 5)
    """
    return int(np.floor(depth * n_blocks + 0.5))
