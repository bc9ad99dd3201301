"""The columns of the tables: what each is called, holds and means, defined once.

The profile's table, its files, the page, sweeps, studies and the documentation read them from here:
a column that is added to `PROFILE` is in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from layerscope.core.sites import Site
from layerscope.core.statistics import INTERVAL, Interval

if TYPE_CHECKING:
    pass

__all__ = ["PLACE", "PROFILE", "VALUE", "names"]


@dataclass(frozen=True)
class Measured:
    """What a row of a profile is made from. `estimate` is the metric's own, without its
    influences."""

    site: Site
    metric: str
    normalization: str
    sink: str
    value: Interval
    estimate: Any


@dataclass(frozen=True)
class Column:
    """One column: its name, the type of its values and what they mean.

    `role` says whether it tells where (`place`), what (`key`; together they tell rows apart) or how
    much (`value`). `of` takes a row's value from what was measured, for columns of a profile.
    `short` is its name in the page's data.
    """

    name: str
    kind: type = str
    meaning: str = ""
    role: Literal["place", "key", "value"] = "value"
    of: Callable[[Measured], Any] | None = None
    short: str = ""

    @property
    def empty(self) -> Any:
        """What stands where a row has no value."""
        return math.nan if self.kind in (int, float) else None


PLACE = (
    Column(
        "site",
        str,
        "where the states were read, such as `block.11`; `embed` is layer 0",
        "place",
        lambda m: m.site.name,
    ),
    Column(
        "layer",
        int,
        "blocks before the state; 0 is the input of the first block",
        "place",
        lambda m: m.site.layer,
    ),
    Column("depth", float, "layer / blocks", "place", lambda m: m.site.depth),
)
VALUE = (
    Column(
        "value",
        float,
        "the number; empty where it is undefined",
        "value",
        lambda m: m.value.value,
        "v",
    ),
    Column(
        INTERVAL[0],
        float,
        "the lower end of its 95 % interval, where there is one",
        "value",
        lambda m: m.value.low,
        "lo",
    ),
    Column(INTERVAL[1], float, "the upper end", "value", lambda m: m.value.high, "hi"),
    Column("n", int, "the prompts or items behind it", "value", lambda m: m.value.n, "n"),
)
PROFILE = (
    *PLACE,
    Column("metric", str, "what was measured", "key", lambda m: m.metric),
    Column(
        "normalization",
        str,
        "what it was divided by (`raw`: nothing)",
        "key",
        lambda m: m.normalization,
    ),
    Column(
        "sink", str, "the token with the largest norm: `keep` or `drop`", "key", lambda m: m.sink
    ),
    *VALUE,
)


def names(columns: Iterable[Column], *roles: str) -> list[str]:
    """The names of some columns: all, or those of a role.

    >>> names(PROFILE, "key")
    ['metric', 'normalization', 'sink']
    """
    return [column.name for column in columns if not roles or column.role in roles]
