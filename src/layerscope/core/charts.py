"""Charts as data: curves or bars on the same axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from layerscope.core.statistics import INTERVAL

if TYPE_CHECKING:
    import pandas as pd
    from altair import TopLevelMixin as Figure
else:
    Figure = Any  # altair is an extra: this is for annotations

__all__ = ["Chart", "Figure", "Line", "Style"]


@dataclass(frozen=True)
class Style:
    """The look of a line: `color` is a place in the palette, `dash` the lengths of dashes."""

    color: int
    dash: str


@dataclass(frozen=True)
class Line:
    """One curve over layers, or the bars of one kind, whose names are `layers`.

    - `note`: one of its layers gets a point, and words beside it.
    - `look`: a color of its own if None. A `dropped` curve is dotted. A line without a name is
      drawn dashed, in the color of the line before.
    - `blocks`: of the model; None: the number of the last layer.
    - `tags`: the switches of a page by which the line is shown.
    """

    name: str
    layers: Sequence[Any]
    values: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    blocks: int | None = None
    note: tuple[Any, str] | None = None
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
        """Return one column of a table over its layers, with its interval if the table has one."""
        low, high = (list(scale * rows[end]) if end in rows else None for end in INTERVAL)
        return cls(name, list(rows[x]), list(scale * rows[value]), low, high, **more)


@dataclass(frozen=True)
class Chart:
    """Curves on the same axes, or groups of bars.

    `x` names the horizontal axis; None: it is the layers, or their depth. Lines that are `ordered`
    (by size, by training step) are colored from dark to light. `level` is a dashed horizontal line
    and its name.
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
