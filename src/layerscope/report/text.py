"""Numbers, curves and tables as text, for terminals and notebooks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table

from layerscope.core.tables import lowest_and_highest
from layerscope.terminal import headed_table

__all__ = ["curve_ends", "number", "numeric_table", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"
_NAMES = (
    "metric",
    "verdict",
    "site",
    "first → last",
    "embed → last layer",
    "layer 0 → last",
)  # columns of whole words


def numeric_table(*headings: str, words: Sequence[str] = ()) -> Table:
    """Return a table with numbers to the right and whole; `words` name the columns that may fold."""
    table = headed_table()
    for heading in headings:
        side = "left" if heading in words or heading in _NAMES else "right"
        table.add_column(heading, justify=side, no_wrap=heading not in words, overflow="fold")  # type: ignore[arg-type]
    return table


def number(value: float) -> str:
    """Return a number with as many digits as a reader needs."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if 0 < size < 0.01:
        return f"{value:.1e}"
    if 0 < size < 0.1:
        return f"{value:.3f}"
    digits = 2
    if size >= 100:
        digits = 0
    elif size >= 10:
        digits = 1
    return f"{value:.{digits}f}"


def break_at_slashes(name: str, width: int) -> str:
    """Return a readout's name on as many lines as it needs, broken behind slashes.

    >>> break_at_slashes("one-word/last/raw/keep/none", 16)
    'one-word/last/\\nraw/keep/none'
    """
    lines = [""]
    for piece in name.replace("/", "/\0").split("\0"):
        if lines[-1] and len(lines[-1]) + len(piece) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def curve_ends(layers: Any, values: Any) -> list[str]:
    """Return the lowest and the highest value of a curve, each with its layer.

    >>> curve_ends([0, 1, 2], [1.5, float("nan"), 0.25])
    ['0.25 @ 2', '1.50 @ 0']
    """
    ends = lowest_and_highest(layers, values).values()
    return [f"{number(end['value'])} @ {end['layer']}" for end in ends] or ["–", "–"]


def sparkline(values: Any, most: int | None = None) -> str:
    """Return a curve in one line of text, with gaps where a value is undefined.

    Of more than `most` values some are drawn, evenly spread, ends included.

    >>> sparkline([0, 1, 2, 3])
    '▁▃▆█'
    """
    curve = np.asarray(values, dtype=float)
    if most is not None and len(curve) > most:
        curve = curve[np.linspace(0, len(curve) - 1, most).round().astype(int)]
    finite = curve[np.isfinite(curve)]
    if not len(finite):
        return " " * len(curve)
    low = finite.min()
    span = finite.max() - low
    heights = (curve - low) / span * 7 if span else np.where(np.isfinite(curve), 3, np.nan)
    return "".join(_BARS[round(h)] if math.isfinite(h) else " " for h in heights)
