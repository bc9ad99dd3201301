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
