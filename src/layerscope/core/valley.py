"""When a dip in a curve over layers is a valley: one detector with one threshold
(docs/decisions/when-a-dip-is-a-valley.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from layerscope.core.scores import DRAWS
from layerscope.core.statistics import Z95, Array, Interval

__all__ = ["LEAST_SHARE", "deepest_share", "find_valley"]

LEAST_SHARE = 0.05
"""The least depth of a valley, as a share of its lower shoulder. Published models have at most 3 %
or at least 8 %."""


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
        """Deep enough, and deeper than noise makes it, as far as noise is known."""
        return self.share >= LEAST_SHARE and self.share > self.noise and self.probability >= 0.5


def find_valley(
    curve: np.ndarray,
    *,
    low: np.ndarray | None = None,
    high: np.ndarray | None = None,
    samples: np.ndarray | None = None,
) -> Valley | None:
    """The deepest dip of a curve; None where the curve has fewer than three points or an undefined
    one.

    What is known about noise: `samples` (items, points), whose mean the curve is, compares the two
    layers item by item; else `low` and `high` are the 95 % bounds of each point, taken as
    independent, which is careful.

    >>> found = find_valley(np.array([4.0, 3.0, 5.0]))
    >>> found.place, found.share, found.clear
    (1, 0.25, True)
    """
    values = np.asarray(curve, dtype=np.float64)
    if len(values) < 3 or not np.isfinite(values).all():
        return None
    shoulder, depth = dips(values)
    place = 1 + int(np.argmax(depth[1:-1]))
    before, after = int(np.argmax(values[: place + 1])), place + int(np.argmax(values[place:]))
    lower = before if values[before] <= values[after] else after
    noise, bounds = _noise(values, low, high, samples, place, lower)
    return Valley(
        place,
        lower,
        float(values[place]),
        float(shoulder[place]),
        Interval(float(depth[place]), *bounds, n=0 if samples is None else len(samples)),
        *_against(values, noise),
    )


def dips(curves: Array) -> tuple[Array, Array]:
    """At every point of curves along the last axis: the lower of its two shoulders, and how far the
    point lies below it."""
    left = np.maximum.accumulate(curves, axis=-1)
    right = np.maximum.accumulate(curves[..., ::-1], axis=-1)[..., ::-1]
    shoulder = np.minimum(left, right)
    return shoulder, shoulder - curves


def deepest_share(curves: Array) -> Array:
    """The depth of the deepest dip as a share of its shoulder; 0 where a curve has no dip."""
    shoulder, depth = dips(curves)
    place = depth.argmax(-1)[..., None]
    deepest, beside = (np.take_along_axis(part, place, -1)[..., 0] for part in (depth, shoulder))
    return np.asarray(deepest / np.maximum(np.abs(beside), 1e-12))


def _noise(
    values: Array,
    low: np.ndarray | None,
    high: np.ndarray | None,
    samples: np.ndarray | None,
    place: int,
    lower: int,
) -> tuple[Array | None, tuple[float, float]]:
    """Deviations of the whole curve (draws, points), and the bounds of the depth; None and NaN
    where nothing is known."""
    depth = float(values[lower] - values[place])
    rng = np.random.default_rng(0)
    if samples is not None and len(samples) > 1:
        count = len(samples)
        fall = samples[:, lower] - samples[:, place]
        reach = Z95 * float(fall.std(ddof=1)) / math.sqrt(count)
        scale, axes = np.linalg.eigh(np.atleast_2d(np.cov(samples, rowvar=False)) / count)
        drawn = rng.standard_normal((DRAWS, len(values))) * np.sqrt(np.maximum(scale, 0.0))
        return drawn @ axes.T, (depth - reach, depth + reach)
    if low is not None and high is not None:
        sd = np.nan_to_num(np.maximum(np.asarray(high, float) - np.asarray(low, float), 0.0)) / (
            2 * Z95
        )
        if sd.any():
            reach = Z95 * math.hypot(float(sd[place]), float(sd[lower]))
            return rng.standard_normal((DRAWS, len(values))) * sd, (depth - reach, depth + reach)
    return None, (math.nan, math.nan)


def _against(values: Array, noise: Array | None) -> tuple[float, float]:
    """The probability of a dip of the least depth, and the share that noise alone reaches in 95 %
    of cases.

    Noise makes dips of its own, so what it makes of a flat curve is taken off.
    """
    if noise is None:
        return float(deepest_share(values) >= LEAST_SHARE), 0.0
    drawn = deepest_share(values + noise)
    flat = deepest_share(np.full_like(values, values.mean()) + noise)
    return float((drawn - np.median(flat) >= LEAST_SHARE).mean()), float(np.quantile(flat, 0.95))
