"""What recomputing a table or figure gives: rows with verdicts, and panels to draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

SUPPORTED, NOT_SUPPORTED, UNCHECKED = "supported", "not supported", "cannot be checked"
NO_SCORES = "none: uses no scores"


@dataclass(frozen=True)
class Row:
    """One number of the paper beside ours. `printed` is None where the paper shows a curve or a claim in words, but no number."""

    item: str
    model: str
    column: str
    printed: float | None
    ours: float | None
    tasks: int | None
    convention: str
    verdict: str
    note: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Series:
    """One line, or one group of bars."""

    label: str
    x: Sequence[Any]
    y: Sequence[float]
    dashed: bool = False
    mark: int | None = None  # index of a point to mark


@dataclass
class Panel:
    """One set of axes. With `bars`, x are names."""

    title: str
    x_label: str
    y_label: str
    series: list[Series]
    bars: bool = False
    ordered: bool = False  # the series have an order (size, training step): colors run from dark to light
    whiskers: list[tuple[float, float]] = field(default_factory=list)
    level: tuple[float, str] | None = None  # a dashed horizontal line and what it is


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper. A new one is a new file in this folder with `ITEM` (or `ITEMS`) in it."""

    name: str
    title: str
    claim: str  # what the paper says, in our words
    rows: Callable[[str], list[Row]]
    panels: Callable[[str], list[Panel]]
    uses_scores: bool = True


def judge(holds: bool) -> str:
    """A verdict from a test that could be made."""
    return SUPPORTED if holds else NOT_SUPPORTED


def near(printed: float, ours: float, tolerance: float = 0.05) -> str:
    """Whether our number rounds to the printed one."""
    return judge(abs(printed - ours) <= tolerance + 1e-9)
