"""Numbers, curves and tables as text, for terminals, notebooks and Markdown."""

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
    """Numbers to the right and whole; `words` name the columns that may fold."""
    table = headed_table()
    for heading in headings:
        left = heading in words or heading in _NAMES
        table.add_column(
            heading,
            justify="left" if left else "right",
            no_wrap=heading not in words,
            overflow="fold",
        )
    return table


def number(value: float) -> str:
    """A number with as many digits as a reader needs."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 0.1 or size == 0:
        return f"{value:.2f}"
    return f"{value:.3f}" if size >= 0.01 else f"{value:.1e}"


def break_at_slashes(name: str, width: int) -> str:
    """A readout's name on as many lines as it needs, broken behind slashes and not inside a word.

    >>> break_at_slashes("one-word/last/raw/keep/none", 16)
    'one-word/last/\\nraw/keep/none'
    """
    lines = [""]
    parts = name.split("/")
    for place, part in enumerate(parts):
        piece = part + "/" * (place < len(parts) - 1)
        if lines[-1] and len(lines[-1]) + len(piece) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def curve_ends(layers: Any, values: Any) -> list[str]:
    """The lowest and the highest value of a curve, each with its layer.

    >>> curve_ends([0, 1, 2], [1.5, float("nan"), 0.25])
    ['0.25 @ 2', '1.50 @ 0']
    """
    return [
        f"{number(end['value'])} @ {end['layer']}"
        for end in lowest_and_highest(layers, values).values()
    ] or ["–", "–"]


def sparkline(values: Any, most: int | None = None) -> str:
    """A curve in one line of text; gaps where a value is undefined. Of more than `most` values,
    some, evenly, ends included.

    >>> sparkline([0, 1, 2, 3])
    '▁▃▆█'
    """
    array = np.asarray(values, dtype=float)
    if most is not None and len(array) > most:
        array = array[np.linspace(0, len(array) - 1, most).round().astype(int)]
    finite = array[np.isfinite(array)]
    if not len(finite):
        return " " * len(array)
    low, span = float(finite.min()), float(finite.max() - finite.min())
    if span == 0:
        return "".join(_BARS[3] if math.isfinite(v) else " " for v in array)
    return "".join(_BARS[round((v - low) / span * 7)] if math.isfinite(v) else " " for v in array)
