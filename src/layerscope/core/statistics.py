"""Statistics in one place: ranks, Spearman's ρ, average precision, Student's t and resampling.

Everything random takes a seed. What is undefined is NaN, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

__all__ = [
    "INTERVAL",
    "Array",
    "Interval",
    "bootstrap_rows",
    "jackknife_error",
    "mean_ranks",
    "spearman",
    "student_cdf",
    "student_quantile",
]

Array = NDArray[np.float64]
Seed = int | Sequence[int]

Z95 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution: half the width of a 95 % interval, in standard
deviations."""

INTERVAL = ("ci_low", "ci_high")
"""The columns of a table that hold a value's 95 % interval."""


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval. The bounds are NaN where none is known; `n` is how many items
    it rests on, 0 if not said.

    >>> print(Interval(0.5, 0.25, 0.75, n=12))
    +0.50 (+0.25 to +0.75)
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    n: int = 0

    @classmethod
    def from_row(cls, row: Any, value: str = "value", prefix: str = "") -> Self:
        """The value of a table's row (a mapping or series) with its interval, whose columns may
        have a prefix."""
        found = [row.get(name) for name in (value, *(prefix + end for end in INTERVAL))]
        middle, low, high = (math.nan if number is None else float(number) for number in found)
        return cls(middle, low, high)

    @property
    def columns(self) -> dict[str, float]:
        """The interval as the columns of a table."""
        return {"value": self.value, INTERVAL[0]: self.low, INTERVAL[1]: self.high, "n": self.n}

    @property
    def known(self) -> bool:
        """Whether both bounds are known."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def sign(self) -> int:
        """1 or −1 where the interval lies above or below zero, 0 where it contains zero or is not
        known."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    def scaled(self, factor: float) -> Interval:
        """In another unit, such as points (× 100)."""
        low, high = (
            sorted((factor * self.low, factor * self.high)) if self.known else (math.nan, math.nan)
        )
        return Interval(factor * self.value, low, high, self.n)

    def format(self, digits: int = 2, signed: bool = True) -> str:
        """`value (low to high)`; without known bounds the value and the reason."""
        sign = "+" if signed else ""
        if not self.known:
            items = f": {self.n} item{'s' * (self.n != 1)}" if self.n else ""
            return f"{self.value:{sign}.{digits}f} (no interval{items})"
        return f"{self.value:{sign}.{digits}f} ({self.low:{sign}.{digits}f} to {self.high:{sign}.{digits}f})"

    def ends(self, digits: int = 1, signed: bool = True) -> str:
        """` [low, high]`; nothing where they are not known."""
        sign = "+" if signed else ""
        return f" [{self.low:{sign}.{digits}f}, {self.high:{sign}.{digits}f}]" if self.known else ""

    def __str__(self) -> str:
        return self.format()


def mean_ranks(values: ArrayLike) -> Array:
    """Return ranks from 1 along the last axis; ties share their mean. A row with an undefined value
    has no ranks (NaN).

    >>> mean_ranks([10.0, 20.0, 20.0, 30.0]).tolist()
    [1.0, 2.5, 2.5, 4.0]
    """
    from scipy.stats import rankdata  # takes half a second to import

    array = np.asarray(values, dtype=np.float64)
    return np.asarray(rankdata(array, axis=-1, nan_policy="propagate"), dtype=np.float64)


def spearman(x: ArrayLike, y: ArrayLike, weights: Array | None = None) -> Array:
    """Spearman's ρ along the last axis; NaN where a series is constant or has an undefined value.

    With `weights` (draws, n): x (rows, n) against y (n,) under each weighting, (rows, draws). An
    item that counts twice is two equal items.

    >>> float(spearman([1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 9.0, 16.0]))
    1.0
    """
    if weights is not None:
        return _weighted_spearman(
            np.atleast_2d(np.asarray(x, np.float64)), np.asarray(y, np.float64), weights
        )
    a, b = mean_ranks(x), mean_ranks(y)
    a, b = a - a.mean(-1, keepdims=True), b - b.mean(-1, keepdims=True)
    size = np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(size > 0, (a * b).sum(-1) / size, math.nan))


def _weighted_spearman(rows: Array, y: Array, weights: Array) -> Array:
    """An item of weight c takes c places, equal values take theirs together: ranks are the middles
    of these runs of places."""
    each = np.ascontiguousarray(
        weights.T
    )  # (n, draws): whole rows are moved into the order of values
    total, cubes, room = each.sum(0), np.einsum("nb,nb,nb->b", each, each, each), _room(each)

    def placed(values: Array) -> tuple[NDArray[Any], Array, Array]:
        """The order of values; in it, ranks and half a weight more; 12 × the weighted squares of
        ranks seen from their mean."""
        order = np.argsort(values)
        places, several = _running(each, order, room), cubes
        starts = np.flatnonzero(np.append(True, values[order][1:] != values[order][:-1]))
        sizes = np.diff(np.append(starts, len(values)))
        if len(tied := np.flatnonzero(np.repeat(sizes, sizes) > 1)):
            first, sizes = starts[sizes > 1], sizes[sizes > 1]
            below, above, own = (
                places[first] - each[order[first]],
                places[first + sizes - 1],
                each[order[tied]],
            )
            several = cubes - (own * own * own).sum(0) + ((above - below) ** 3).sum(0)
            places[tied] = np.repeat((below + above) / 2, sizes, axis=0) + own / 2
        return order, places, total**3 - several

    order, places, goal_spread = placed(y)
    goal = np.empty_like(each)
    goal[order] = places - total / 2
    goal = (goal - each / 2) * each
    half = np.einsum("nb,nb->b", each, goal) / 2
    out = np.full((len(rows), len(weights)), math.nan)
    for i, row in enumerate(rows):
        if np.isfinite(row).all():
            order, places, spread = placed(row)
            size = np.sqrt(spread * goal_spread)
            both = 12 * (np.einsum("nb,nb->b", places, _taken(goal, order, room[0])) - half)
            np.divide(both, size, out=out[i], where=size > 0)
    return out


_TRIANGLE = np.tri(16)  # a block: its product with rows are their running totals


def _room(rows: Array) -> Array:
    """Memory for rows and for their running totals, a whole block more: new memory for each would
    take longer than to fill it."""
    return np.empty((2, len(rows) + len(_TRIANGLE), rows.shape[1]))


def _taken(rows: Array, chosen: NDArray[Any], out: Array) -> Array:
    return rows.take(chosen, 0, out[: len(chosen)], "clip")  # any other mode copies `out` first


def _running(rows: Array, order: NDArray[Any], room: Array) -> Array:
    """Running totals of rows in an order, by products of blocks: `np.cumsum` takes longer, and
    holds other threads up."""
    n, block = len(order), len(_TRIANGLE)
    _taken(rows, order, room[0])
    room[0, n : n + block] = 0
    moved, totals = room[:, : -(-n // block) * block].reshape(2, -1, block, rows.shape[1])
    np.matmul(_TRIANGLE, moved, out=totals)
    totals[1:] += np.cumsum(totals[:-1, -1], axis=0)[:, None]
    return room[1, :n]


def average_precision(scores: Array, relevant: Array, weights: Array | None = None) -> Array:
    """Area under precision over recall of a ranking by `scores` (n,), ties taken together; NaN
    where nothing is relevant or a score is undefined. With `weights` (draws, n): of scores (rows,
    n) under each weighting, (rows, draws).

    >>> float(average_precision(np.array([0.9, 0.8, 0.1]), np.array([1.0, 0.0, 1.0])))  # (1/1 + 2/3) / 2
    0.8333333333333333
    """
    rows = np.atleast_2d(scores)
    each = np.ones((rows.shape[1], 1)) if weights is None else np.ascontiguousarray(weights.T)
    right, room, seen = each * relevant[:, None], _room(each), np.empty_like(each)
    out = np.full((len(rows), each.shape[1]), math.nan)
    for i, row in enumerate(rows):
        order = np.argsort(-row, kind="stable")
        found = np.flatnonzero(relevant[order])  # precision is asked for at these alone
        if not len(found) or not np.isfinite(row).all():
            continue
        edge = np.append(np.diff(row[order]) != 0, True)
        ends = np.flatnonzero(edge)[np.cumsum(np.append(0, edge[:-1]))][found]
        before = _taken(_running(each, order[: ends[-1] + 1], room), ends, seen)
        hits = _taken(
            _running(right, order[found], room),
            np.searchsorted(found, ends, side="right") - 1,
            room[0],
        )
        precision = np.divide(
            hits, before, out=hits, where=before > 0
        )  # where nothing was seen, nothing was hit
        with np.errstate(invalid="ignore"):
            out[i] = np.einsum(
                "nb,nb->b", precision, _taken(right, order[found], room[1])
            ) / right.sum(0)
    return np.asarray(out[0, 0]) if weights is None else out


def student_cdf(t: float, df: int) -> float:
    """Return P(T ≤ t) of Student's t.

    >>> round(student_cdf(2.776445, 4), 4)
    0.975
    """
    if df < 1:
        raise ValueError(f"degrees of freedom must be at least 1, not {df}")
    return float(stdtr(df, t))


def student_quantile(p: float, df: int) -> float:
    """Return the t with P(T ≤ t) = p.

    >>> round(student_quantile(0.975, 3), 3)
    3.182
    """
    return float(stdtrit(df, p))


def bootstrap_rows(count: int, draws: int, seed: Seed) -> NDArray[np.int64]:
    """Which of `count` items each resample draws, with replacement: (draws, count)."""
    return np.random.default_rng(seed).integers(0, count, (draws, count))


def bootstrap_weights(
    count: int, draws: int, seed: Seed, groups: np.ndarray | None = None
) -> Array:
    """How often each item counts in each resample (draws, count). Items of a group are drawn among
    themselves."""
    rng = np.random.default_rng(seed)
    weights = np.zeros((draws, count))
    for group in [None] if groups is None else np.unique(groups):
        members = np.arange(count) if group is None else np.flatnonzero(groups == group)
        weights[:, members] = rng.multinomial(
            len(members), np.full(len(members), 1 / len(members)), draws
        )
    return weights


def jackknife_error(left_out: Sequence[float]) -> float:
    """The standard error from the values without each fold; NaN if one is undefined, or if there
    are fewer than three.

    With two folds each value rests on the other fold alone, which says nothing about how the whole
    varies.
    """
    folds = len(left_out)
    if folds < 3 or not all(math.isfinite(v) for v in left_out):
        return math.nan
    mean = math.fsum(left_out) / folds
    return math.sqrt((folds - 1) / folds * math.fsum((v - mean) ** 2 for v in left_out))
