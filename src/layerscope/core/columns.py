"""Tables: what each column is called and holds, defined once, and how tables are turned.

The profile's table, its files, the page, sweeps, studies and the documentation read them from here:
a column that is added to `PROFILE` is in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from layerscope.core.sites import Site
from layerscope.core.statistics import INTERVAL, Interval

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PLACE", "PROFILE", "VALUE", "lowest_and_highest", "names", "pivot"]


@dataclass(frozen=True)
class Measured:
    """The values that a row of a profile is made from. `estimate` is the metric's own, without its
    influences."""

    site: Site
    metric: str
    normalization: str
    sink: str
    value: Interval
    estimate: Any


@dataclass(frozen=True)
class Column:
    """One column: its name and the type of its values.

    `role` says whether it tells where (`place`), what (`key`; together they tell rows apart) or how
    much (`value`). `of` takes a row's value from what was measured, for columns of a profile.
    docs/report.md explains them.
    """

    name: str
    kind: type = str
    role: Literal["place", "key", "value"] = "value"
    of: Callable[[Measured], Any] | None = None


PLACE = (
    Column("site", str, "place", lambda m: m.site.name),
    Column("layer", int, "place", lambda m: m.site.layer),
    Column("depth", float, "place", lambda m: m.site.depth),
)
VALUE = (
    Column("value", float, "value", lambda m: m.value.value),
    Column(INTERVAL[0], float, "value", lambda m: m.value.low),
    Column(INTERVAL[1], float, "value", lambda m: m.value.high),
    Column("n", int, "value", lambda m: m.value.n),
)
PROFILE = (
    *PLACE,
    Column("metric", str, "key", lambda m: m.metric),
    Column("normalization", str, "key", lambda m: m.normalization),
    Column("sink", str, "key", lambda m: m.sink),
    *VALUE,
)


def names(columns: Iterable[Column], *roles: str) -> list[str]:
    """Return the names of columns: all, or those of a role.

    >>> names(PROFILE, "key")
    ['metric', 'normalization', 'sink']
    """
    return [column.name for column in columns if not roles or column.role in roles]


def lowest_and_highest(layers: Any, values: Any) -> dict[str, dict[str, Any]]:
    """Return where a curve over layers is lowest and highest.

    Undefined values are left out; the result is empty where all are undefined.
    """
    points = [
        (float(value), int(layer))
        for layer, value in zip(layers, values, strict=True)
        if value == value
    ]
    if not points:
        return {}
    ends = {
        "lowest": min(points, key=lambda point: point[0]),
        "highest": max(points, key=lambda point: point[0]),
    }
    return {name: {"layer": layer, "value": value} for name, (value, layer) in ends.items()}


def pivot(
    rows: pd.DataFrame, column: str | list[str], index: str = "layer", value: str = "value"
) -> pd.DataFrame:
    """Return a tidy table as a wide one; the columns keep the order in which they first come."""
    table = rows.pivot_table(index=index, columns=column, values=value, aggfunc="first", sort=False)
    return table.sort_index()
