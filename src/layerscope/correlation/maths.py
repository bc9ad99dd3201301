"""Measures of association between two short series, their permutation null and their bootstrap: numpy only.

Every measure here is one of Daniels' generalized correlations: turn each series into a matrix over pairs of points, a and b, and
take Γ = Σ a_ij b_ij / √(Σ a_ij² · Σ b_ij²). What differs is the matrix:

| measure | a_ij | value |
|---|---|---|
| `dcor` | distances, double-centered (Székely, Rizzo & Bakirov 2007: the biased V-statistic) | √Γ, in [0, 1] |
| `dcor_corrected` | distances, U-centered (Székely & Rizzo 2013) | Γ, a squared correlation: 0 on average if independent |
| `spearman` | differences of ranks | Γ = ρ |
| `kendall` | signs of differences | Γ = τ-b |

So one permutation of the layers is one re-indexing of b: matrices are centered once, whatever the number of permutations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerscope.core.statistics import Array, bootstrap_rows, mean_ranks

_CHUNK = 4_000_000  # elements of one batch of matrices: 32 MB
_MOST_SHIFT = 0.7  # standard deviations; covers 83 to 95 % for dependent pairs of 13 and 25 points, against 55 to 93 % unbounded
_FLAT = 1e-12  # a series whose spread is below this share of its size is constant


@dataclass(frozen=True)
class Measure:
    """One measure: its matrix over pairs of points, and how Γ becomes its value."""

    name: str
    matrix: Callable[[Array], Array]
    least: int  # points it needs
    signed: bool  # whether a strong association may be negative
    root: bool = False

    def finish(self, gamma: Array) -> Array:
        """Γ as the measure's value."""
        return np.sqrt(np.clip(gamma, 0.0, None)) if self.root else gamma

    def strength(self, value: Array) -> Array:
        """What is compared with the null: the size of a signed measure, the value of the others."""
        return np.abs(value) if self.signed else value


def _distances(x: Array) -> Array:
    return np.abs(x[..., :, None] - x[..., None, :])


def _double_centered(x: Array) -> Array:
    d = _distances(x)
    row = d.mean(axis=-1, keepdims=True)
    return d - row - np.swapaxes(row, -1, -2) + row.mean(axis=-2, keepdims=True)


def _u_centered(x: Array) -> Array:
    d = _distances(x)
    n = d.shape[-1]
    row = d.sum(axis=-1, keepdims=True)
    centered = d - row / (n - 2) - np.swapaxes(row, -1, -2) / (n - 2) + row.sum(axis=-2, keepdims=True) / ((n - 1) * (n - 2))
    centered[..., np.arange(n), np.arange(n)] = 0.0
    return centered


def _signs(x: Array) -> Array:
    return np.sign(x[..., :, None] - x[..., None, :])


def _rank_differences(x: Array) -> Array:
    rank = mean_ranks(x)
    return rank[..., :, None] - rank[..., None, :]


MEASURES = {
    m.name: m
    for m in (
        Measure("dcor", _double_centered, 3, signed=False, root=True),
        Measure("dcor_corrected", _u_centered, 4, signed=False),
        Measure("spearman", _rank_differences, 3, signed=True),
        Measure("kendall", _signs, 3, signed=True),
    )
}


def is_constant(x: Array) -> bool:
    """Whether a series does not vary, up to rounding."""
    return bool(np.ptp(x) <= _FLAT * max(1e-300, float(np.max(np.abs(x)))))


def undefined_because(x: Array, y: Array, least: int = 4) -> str | None:
    """Why no measure of these two series exists, or None."""
    if len(x) < least:
        return f"{len(x)} points, at least {least} are needed"
    if is_constant(x):
        return "the metric is constant"
    return "the scores are constant" if is_constant(y) else None


def association(measure: str, x: Array, y: Array) -> float:
    """The value of a measure. Both series must vary: see `undefined_because`.

    >>> association("spearman", np.array([1.0, 2, 3, 4]), np.array([1.0, 4, 9, 16]))
    1.0
    """
    kind = MEASURES[measure]
    value = kind.finish(_gamma(kind.matrix(np.asarray(x, float)), kind.matrix(np.asarray(y, float))))
    return float(value)


def _gamma(a: Array, b: Array) -> Array:
    """Γ of each pair of matrices; NaN where one of them is all zeros."""
    size = np.sqrt(np.einsum("...ij,...ij->...", a, a) * np.einsum("...ij,...ij->...", b, b))
    product = np.einsum("...ij,...ij->...", a, b)
    return np.where(size > 0, product / np.where(size > 0, size, 1.0), np.nan)


def draw_permutations(n: int, count: int, seed: int) -> NDArray[np.intp]:
    """`count` random orders of n points."""
    return np.random.default_rng(seed).random((count, n)).argsort(axis=1)


def null_values(measure: str, xs: Array, y: Array, orders: NDArray[np.intp]) -> Array:
    """Values under independence: y re-ordered against each row of `xs`. One row per x, one column per order."""
    kind = MEASURES[measure]
    a = kind.matrix(np.asarray(xs, float))
    b = kind.matrix(np.asarray(y, float))
    n = b.shape[-1]
    size = np.sqrt(np.einsum("kij,kij->k", a, a) * np.einsum("ij,ij->", b, b))
    flat = a.reshape(len(a), -1)
    found = np.empty((len(a), len(orders)))
    step = max(1, _CHUNK // (n * n))
    for start in range(0, len(orders), step):
        part = orders[start : start + step]
        moved = b[part[:, :, None], part[:, None, :]].reshape(len(part), -1)
        found[:, start : start + step] = flat @ moved.T
    return kind.finish(found / size[:, None])


def p_value(measure: str, observed: float, null: Array) -> float:
    """Share of the orders (the observed one included) at least as strong; two-sided for signed measures."""
    kind = MEASURES[measure]
    strength = kind.strength(np.asarray(observed))
    reached = kind.strength(null) >= strength - 1e-12  # equal values differ in their last bits
    return float((1 + reached.sum()) / (1 + null.size))


def bootstrap_interval(
    measure: str, x: Array, y: Array, draws: int = 2000, seed: int = 0, level: float = 0.95
) -> tuple[float, float] | None:
    """Bias-corrected percentile interval over resampled points, or None if most resamples are undefined.

    Repeated points push distance correlation up; Efron's (1981) correction takes the shift out. It is held within
    `_MOST_SHIFT`: beyond that the interval would shrink to a point at the edge of what was drawn.
    """
    kind = MEASURES[measure]
    n = len(x)
    rows = bootstrap_rows(n, draws, seed)
    x, y = np.asarray(x, float), np.asarray(y, float)
    step = max(1, _CHUNK // (n * n))
    parts = [kind.finish(_gamma(kind.matrix(x[r]), kind.matrix(y[r]))) for r in np.array_split(rows, -(-draws // step))]
    drawn = np.concatenate(parts)
    drawn = drawn[np.isfinite(drawn)]
    if len(drawn) < draws / 2:
        return None
    normal = NormalDist()
    observed = association(measure, x, y)
    below = float(((drawn < observed).sum() + 0.5 * (drawn == observed).sum()) / len(drawn))
    shift = normal.inv_cdf(min(max(below, normal.cdf(-_MOST_SHIFT)), normal.cdf(_MOST_SHIFT)))
    tail = normal.inv_cdf((1 + level) / 2)
    low, high = (float(np.quantile(drawn, normal.cdf(2 * shift + side * tail))) for side in (-1, 1))
    return min(low, observed), max(high, observed)


# --- what chance gives for curves over layers: one function for the command, the page and the atlas ---------------------------


def _smoothness(ranks: np.ndarray) -> np.ndarray:
    """Autocorrelations from lag 1 to half the length."""
    n = len(ranks)
    return np.array([ranks[lag:] @ ranks[:-lag] for lag in range(1, n // 2)]) / (ranks @ ranks)


class RankedCurve:
    """A curve over layers; what its rank correlations need is computed once for each set of layers used."""

    def __init__(self, values: ArrayLike) -> None:
        self.values = np.asarray(values, dtype=float)
        self.known = np.isfinite(self.values)
        self._cached: dict[bytes, tuple[np.ndarray, np.ndarray] | None] = {}

    def at(self, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Ranks and autocorrelations on some layers; None where the curve is constant."""
        key = mask.tobytes()
        if key not in self._cached:
            ranks = mean_ranks(self.values[mask])
            ranks = ranks - ranks.mean()
            self._cached[key] = (ranks, _smoothness(ranks)) if ranks.any() else None
        return self._cached[key]


def rank_correlation(x: RankedCurve, y: RankedCurve) -> tuple[float, float, int]:
    """(Spearman's ρ, the |ρ| that chance reaches in 95 % of cases, layers used); undefined below four layers or for a constant.

    Neighboring layers are alike, so the number of independent points is smaller than the number of layers: Bartlett's
    n / (1 + 2 Σ r_x(k) r_y(k)), with both curves' own autocorrelations.
    """
    mask = x.known & y.known
    n = int(mask.sum())
    first, second = (x.at(mask), y.at(mask)) if n >= 4 else (None, None)
    if first is None or second is None:
        return math.nan, math.nan, n
    (a, smooth_a), (b, smooth_b) = first, second
    rho = float(a @ b / math.sqrt(float((a @ a) * (b @ b))))
    lags = np.arange(1, n // 2)
    total = 1 + 2 * float(((1 - lags / n) * smooth_a * smooth_b).sum())
    independent = min(float(n), max(3.0, n / max(total, 1.0)))
    return rho, min(1.0, 1.96 / math.sqrt(independent - 1)), n


def shuffled_noise(n: int) -> float:
    """The |ρ| that n layers in random order reach in 95 % of cases, by permutation; not a number below five layers."""
    if n < 5:
        return math.nan
    layers = np.arange(n, dtype=float)
    drawn = null_values("spearman", layers[None], layers, draw_permutations(n, 1999, 0))
    return float(np.quantile(np.abs(drawn), 0.95))
