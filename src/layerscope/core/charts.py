"""Charts as data: curves or bars on the same axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from layerscope.core.statistics import INTERVAL

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from altair import TopLevelMixin as Figure
else:
    Figure = Any  # altair is an extra: this is for annotations

__all__ = ["Chart", "Figure", "Line"]


@dataclass(frozen=True)
class Style:
    """How one run is drawn; `color` is a place in the palettes."""

    color: int
    dash: str
    marker: str


@dataclass(frozen=True)
class Line:
    """One curve over layers. `note` is a few words beside one of its layers (none: a point), `tied`
    are layers not told from the best.

    `look` is how it is drawn (a color of its own if None). A `dropped` curve is dotted. A line
    without a name is drawn dashed, in the color of the one before. Of a chart of bars, `layers` are
    the bars' names. `tags` say by which switches of a page the line is shown.
    """

    name: str
    layers: Sequence[Any]
    values: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    blocks: int | None = None  # of the model; None: the last layer's number
    note: tuple[Any, str] | None = None
    tied: Sequence[int] = ()
    look: Style | None = None
    dropped: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        name: str,
        rows: pd.DataFrame,
        value: str = "value",
        scale: float = 1,
        x: str = "layer",
        **more: Any,
    ) -> Self:
        """One column of a table over its layers, with its interval where the table has one."""
        low, high = (list(scale * rows[end]) if end in rows else None for end in INTERVAL)
        return cls(name, list(rows[x]), list(scale * rows[value]), low, high, **more)


@dataclass(frozen=True)
class ChoiceGrid:
    """Every candidate that a choice was made from: readouts (rows) × layers. A place is (row,
    column).

    `rows` are a readout's name in two parts: what is read, and how. `low` and `high` are the ends
    of the scores' intervals, `cost` is relative to `today`. `front` are the places that none beats
    at the same cost or less, the cheapest first; `tied` those not told from the best; rows that are
    not `open` could not be chosen.
    """

    unit: str
    rows: list[tuple[str, str]]
    layers: list[int]
    score: np.ndarray
    low: np.ndarray
    high: np.ndarray
    cost: np.ndarray
    tied: np.ndarray
    open: np.ndarray
    chosen: tuple[int, int]
    today: tuple[int, int] | None
    front: list[tuple[int, int]]
    budget: float | None = None


@dataclass(frozen=True)
class Chart:
    """Curves on the same axes, or groups of bars.

    `x` names the horizontal axis; None: it is the layers, or their depth. Lines that are `ordered`
    (by size, by training step) are colored from dark to light. `level` is a dashed horizontal line
    and its name. `limits` are the ends of the vertical axis.
    """

    title: str
    lines: list[Line]
    unit: str = ""
    says: str = ""
    log: bool = False
    x: str | None = None
    bars: bool = False
    ordered: bool = False
    level: tuple[float, str] | None = None
    limits: tuple[float, float] | None = None
