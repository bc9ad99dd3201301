"""Statistics in one place: intervals, ranks, Spearman's ρ, average precision, resampling, and when
a dip in a curve over layers is a valley (docs/decisions/when-a-dip-is-a-valley.md).

Everything random takes a seed. Undefined values are NaN, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

__all__ = [
    "DRAWS",
    "INTERVAL",
    "LEAST_SHARE",
    "Array",
    "Interval",
    "bootstrap_rows",
    "deepest_share",
    "find_valley",
    "jackknife_error",
    "mean_ranks",
    "spearman",
    "student_quantile",
]

Array = NDArray[np.float64]
Seed = int | Sequence[int]

Z95 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution: half the width of a 95 % interval, in standard
deviations."""

DRAWS = 500
"""Resamples behind every tie, and behind the intervals of comparisons."""

INTERVAL = ("ci_low", "ci_high")
"""The columns of a table that hold a value's 95 % interval."""

LEAST_SHARE = 0.05
"""The least depth of a valley, as a share of its lower shoulder. Published models have at most 3 %
or at least 8 %."""


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval.

    The bounds are NaN where none is known; `n` is the number of items behind it, 0 if not said.

    >>> print(Interval(0.5, 0.25, 0.75, n=12))
    +0.50 (+0.25 to +0.75)
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    n: int = 0

    @classmethod
    def from_row(cls, row: Any, value: str = "value", prefix: str = "") -> Self:
        """Return the interval in a table's row (a mapping or series), whose columns of bounds may
        have a prefix."""
        names = (value, *(prefix + end for end in INTERVAL))
        middle, low, high = (
            math.nan if row.get(name) is None else float(row.get(name)) for name in names
        )
        return cls(middle, low, high)

    @property
    def columns(self) -> dict[str, float]:
        """The interval as the columns of a table."""
        return {"value": self.value, INTERVAL[0]: self.low, INTERVAL[1]: self.high, "n": self.n}

    @property
    def known(self) -> bool:
        """True if both bounds are known."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def sign(self) -> int:
        """1 or −1 where the interval lies above or below zero, 0 where it contains zero or is not
        known."""
        return int(self.low > 0) - int(self.high < 0)

    def scaled(self, factor: float) -> Interval:
        """Return the interval in another unit, such as points (× 100)."""
        low = factor * self.low
        high = factor * self.high
        return Interval(factor * self.value, min(low, high), max(low, high), self.n)

    def format(self, digits: int = 2, signed: bool = True) -> str:
        """Return `value (low to high)`; without known bounds the value and the reason."""
        spec = f"{'+' if signed else ''}.{digits}f"
        if self.known:
            return f"{self.value:{spec}} ({self.low:{spec}} to {self.high:{spec}})"
        items = f": {self.n} item{'s' * (self.n != 1)}" if self.n else ""
        return f"{self.value:{spec}} (no interval{items})"

    def ends(self, digits: int = 1, signed: bool = True) -> str:
        """Return ` [low, high]`; nothing where they are not known."""
        spec = f"{'+' if signed else ''}.{digits}f"
        return f" [{self.low:{spec}}, {self.high:{spec}}]" if self.known else ""

    def __str__(self) -> str:
        return self.format()


def mean_ranks(values: ArrayLike) -> Array:
    """Return ranks from 1 along the last axis; ties share their mean.

    A row with an undefined value has no ranks (NaN).

    >>> mean_ranks([10.0, 20.0, 20.0, 30.0]).tolist()
    [1.0, 2.5, 2.5, 4.0]
    """
    from scipy.stats import rankdata  # takes half a second to import

    array = np.asarray(values, dtype=np.float64)
    return np.asarray(rankdata(array, axis=-1, nan_policy="propagate"), dtype=np.float64)


def spearman(x: ArrayLike, y: ArrayLike, weights: Array | None = None) -> Array:
    """Return Spearman's ρ along the last axis.

    NaN where a series is constant or has an undefined value. With `weights` (draws, n): x (rows, n)
    against y (n,) under each weighting, (rows, draws). An item that counts twice is two equal
    items.

    >>> float(spearman([1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 9.0, 16.0]))
    1.0
    """
    if weights is not None:
        rows = np.atleast_2d(np.asarray(x, np.float64))
        return _weighted_spearman(rows, np.asarray(y, np.float64), weights)
    x_ranks = mean_ranks(x)
    y_ranks = mean_ranks(y)
    x_ranks = x_ranks - x_ranks.mean(-1, keepdims=True)
    y_ranks = y_ranks - y_ranks.mean(-1, keepdims=True)
    size = np.sqrt((x_ranks * x_ranks).sum(-1) * (y_ranks * y_ranks).sum(-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(size > 0, (x_ranks * y_ranks).sum(-1) / size, math.nan))


def _weighted_spearman(rows: Array, goal: Array, weights: Array) -> Array:
    """Return Spearman's ρ under weights: an item of weight c takes c places, equal values share
    theirs, and a rank is the middle of these places."""
    counts = np.ascontiguousarray(weights.T)
    total = counts.sum(0)

    def squares(groups: Array) -> Array:
        """Return 12 × the weighted squares of the ranks about their mean."""
        return np.asarray(total**3 - np.einsum("nb,nb,nb->b", groups, groups, groups))

    order, starts = _groups_of(goal)
    groups = _group_sums(counts, order, starts)
    middles = _running_totals(groups) - groups / 2 - total / 2
    goal_squares = squares(groups)
    centered = np.empty_like(counts)
    centered[order] = np.repeat(middles, np.diff(np.append(starts, len(goal))), axis=0)
    centered *= counts
    correlations = np.full((len(rows), len(weights)), math.nan)
    for i, row in enumerate(rows):
        if np.isfinite(row).all():
            order, starts = _groups_of(row)
            groups = _group_sums(counts, order, starts)
            middles = _running_totals(groups) - groups / 2
            product = np.einsum("nb,nb->b", middles, _group_sums(centered, order, starts))
            size = np.sqrt(squares(groups) * goal_squares)
            np.divide(12 * product, size, out=correlations[i], where=size > 0)
    return correlations


def _groups_of(values: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the order of values, and where each group of equal ones starts in it."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    return order, np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))


def _group_sums(rows: Array, order: NDArray[np.int64], starts: NDArray[np.int64]) -> Array:
    """Return the sum of the rows of each group."""
    ordered = rows[order]
    return ordered if len(starts) == len(order) else np.add.reduceat(ordered, starts, axis=0)


_TRIANGLE = np.tri(16)


def _running_totals(rows: Array) -> Array:
    """Return running totals of rows.

    Products of blocks with a triangle take half as long as `np.cumsum`, which also holds other
    threads up.
    """
    block = len(_TRIANGLE)
    padded = np.pad(rows, ((0, -len(rows) % block), (0, 0)))
    totals = np.matmul(_TRIANGLE, padded.reshape(-1, block, rows.shape[1]))
    totals[1:] += np.cumsum(totals[:-1, -1], axis=0)[:, None]
    return np.asarray(totals.reshape(padded.shape)[: len(rows)])


def average_precision(scores: Array, relevant: Array, weights: Array | None = None) -> Array:
    """Return the area under precision over recall of a ranking by `scores` (n,).

    Ties are taken together. NaN where nothing is relevant or a score is undefined. With `weights`
    (draws, n): of scores (rows, n) under each weighting, (rows, draws).

    >>> # (1/1 + 2/3) / 2
    >>> float(average_precision(np.array([0.9, 0.8, 0.1]), np.array([1.0, 0.0, 1.0])))
    0.8333333333333333
    """
    rows = np.atleast_2d(scores)
    counts = np.ones((rows.shape[1], 1)) if weights is None else np.ascontiguousarray(weights.T)
    relevant_counts = counts * relevant[:, None]
    areas = np.full((len(rows), counts.shape[1]), math.nan)
    for i, row in enumerate(rows):
        if np.isfinite(row).all() and len(row):
            order, starts = _groups_of(-row)
            hits = _group_sums(relevant_counts, order, starts)
            count_totals = _running_totals(_group_sums(counts, order, starts))
            hit_totals = _running_totals(hits)
            precision = np.divide(
                hit_totals, count_totals, out=np.zeros_like(hit_totals), where=count_totals > 0
            )
            with np.errstate(invalid="ignore"):
                areas[i] = np.einsum("nb,nb->b", precision, hits) / hit_totals[-1]
    return np.asarray(areas[0, 0]) if weights is None else areas


def student_quantile(p: float, df: int) -> float:
    """Return the t with P(T ≤ t) = p.

    >>> round(student_quantile(0.975, 3), 3)
    3.182
    """
    return float(stdtrit(df, p))


def bootstrap_rows(count: int, draws: int, seed: Seed) -> NDArray[np.int64]:
    """Return the items of `count` that each resample draws, with replacement: (draws, count)."""
    return np.random.default_rng(seed).integers(0, count, (draws, count))


def bootstrap_weights(
    count: int, draws: int, seed: Seed, groups: np.ndarray | None = None
) -> Array:
    """Return how often each item counts in each resample (draws, count).

    Items of a group are drawn among themselves.
    """
    rng = np.random.default_rng(seed)
    weights = np.zeros((draws, count))
    labels = np.zeros(count) if groups is None else groups
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        shares = np.full(len(members), 1 / len(members))
        weights[:, members] = rng.multinomial(len(members), shares, draws)
    return weights


def jackknife_error(left_out: Sequence[float]) -> float:
    """Return the standard error from the values without each fold.

    NaN if one is undefined, or if there are fewer than three: with two folds each value rests on
    the other fold alone, which says nothing about how the whole varies.
    """
    folds = len(left_out)
    if folds < 3 or not all(math.isfinite(value) for value in left_out):
        return math.nan
    mean = math.fsum(left_out) / folds
    return math.sqrt((folds - 1) / folds * math.fsum((value - mean) ** 2 for value in left_out))


# Valleys
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Valley:
    """The deepest dip of a curve below the lower of its two shoulders (the highest points before
    and after it).

    `place` and `shoulder_place` are positions along the curve. `depth` is in the curve's unit; its
    bounds are NaN where the noise of the curve is not known. `noise` is the share of the shoulder
    that noise alone reaches in 95 % of cases; `probability` the chance that the dip is at least
    `LEAST_SHARE` deep, the dips of noise taken off; `clear` whether to call it a valley.
    """

    place: int
    shoulder_place: int
    value: float
    shoulder: float
    depth: Interval
    probability: float
    noise: float = 0.0

    @property
    def share(self) -> float:
        """The depth as a share of the lower shoulder."""
        return self.depth.value / max(abs(self.shoulder), 1e-12)

    @property
    def clear(self) -> bool:
        """True if the dip is deep enough, and deeper than noise makes it, as far as that is
        known."""
        return self.share >= LEAST_SHARE and self.share > self.noise and self.probability >= 0.5


def find_valley(
    curve: np.ndarray,
    *,
    low: np.ndarray | None = None,
    high: np.ndarray | None = None,
    samples: np.ndarray | None = None,
) -> Valley | None:
    """Return the deepest dip of a curve.

    None where the curve has fewer than three points or an undefined one. What is known about noise:
    `samples` (items, points), whose mean the curve is, compares the two layers item by item; else
    `low` and `high` are the 95 % bounds of each point, taken as independent, which is careful.

    >>> valley = find_valley(np.array([4.0, 3.0, 5.0]))
    >>> valley.place, valley.share, valley.clear
    (1, 0.25, True)
    """
    values = np.asarray(curve, dtype=np.float64)
    if len(values) < 3 or not np.isfinite(values).all():
        return None
    shoulder, depth = _dips(values)
    place = 1 + int(np.argmax(depth[1:-1]))
    before = int(np.argmax(values[: place + 1]))
    after = place + int(np.argmax(values[place:]))
    lower = before if values[before] <= values[after] else after
    error: float | None = None
    deviations: Array | None = None
    if samples is not None and len(samples) > 1:
        error = float((samples[:, lower] - samples[:, place]).std(ddof=1)) / math.sqrt(len(samples))
        deviations = _of_samples(samples)
    elif low is not None and high is not None:
        errors = np.nan_to_num(np.maximum(np.subtract(high, low), 0.0)) / (2 * Z95)
        if errors.any():
            error = math.hypot(float(errors[place]), float(errors[lower]))
            rng = np.random.default_rng(0)
            deviations = rng.standard_normal((DRAWS, len(values))) * errors
    reach = math.nan if error is None else Z95 * error
    fall = float(depth[place])
    interval = Interval(fall, fall - reach, fall + reach, n=0 if samples is None else len(samples))
    return Valley(
        place,
        lower,
        float(values[place]),
        float(shoulder[place]),
        interval,
        *_compare_with_noise(values, deviations),
    )


def _dips(curves: Array) -> tuple[Array, Array]:
    """Return the lower of the two shoulders at every point of curves along the last axis, and the
    distance of the point below it."""
    highest_before = np.maximum.accumulate(curves, axis=-1)
    highest_after = np.maximum.accumulate(curves[..., ::-1], axis=-1)[..., ::-1]
    shoulder = np.minimum(highest_before, highest_after)
    return shoulder, shoulder - curves


def deepest_share(curves: Array) -> Array:
    """Return the depth of the deepest dip as a share of its shoulder; 0 where a curve has none."""
    shoulder, depth = _dips(curves)
    place = depth.argmax(-1)[..., None]
    deepest = np.take_along_axis(depth, place, -1)[..., 0]
    beside = np.take_along_axis(shoulder, place, -1)[..., 0]
    return np.asarray(deepest / np.maximum(np.abs(beside), 1e-12))


def _of_samples(samples: Array) -> Array:
    """Return deviations (draws, points) of the mean of samples (items, points)."""
    covariance = np.atleast_2d(np.cov(samples, rowvar=False)) / len(samples)
    variances, axes = np.linalg.eigh(covariance)
    normals = np.random.default_rng(0).standard_normal((DRAWS, samples.shape[1]))
    return np.asarray(normals * np.sqrt(np.maximum(variances, 0.0)) @ axes.T)


def _compare_with_noise(values: Array, deviations: Array | None) -> tuple[float, float]:
    """Return the probability of a dip of the least depth, and the share that noise alone reaches in
    95 % of cases.

    Noise makes dips of its own, so what it makes of a flat curve is taken off.
    """
    if deviations is None:
        return float(deepest_share(values) >= LEAST_SHARE), 0.0
    dips = deepest_share(values + deviations)
    flat = deepest_share(np.full_like(values, values.mean()) + deviations)
    return float((dips - np.median(flat) >= LEAST_SHARE).mean()), float(np.quantile(flat, 0.95))
