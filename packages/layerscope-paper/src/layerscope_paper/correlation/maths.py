"""Measures of association between two curves over layers, their values by chance for curves as
smooth, and the bootstrap.

Every measure here is one of Daniels' generalized correlations: turn each series into a matrix over
pairs of points, a and b, and take Γ = Σ a_ij b_ij / √(Σ a_ij² · Σ b_ij²). The measures differ in
the matrix:

- `dcor`: distances, double-centered (Székely, Rizzo & Bakirov 2007: the biased V-statistic). Its
  value is √Γ, in [0, 1].
- `dcor_corrected`: distances, U-centered (Székely & Rizzo 2013). Its value is Γ, a squared
  correlation: 0 on average if independent.
- `spearman`: differences of ranks (or the centered ranks themselves, which give the same Γ with
  fewer numbers). Γ = ρ.
- `kendall`: signs of differences. Γ = τ-b.

Neighboring layers are alike. Two unrelated curves then agree far more often than shuffled points
do, so shuffling the layers is the wrong null. Curves of one network also share a shape, whatever
they measure: they bend in the middle, and the last layer is apart. Chance is therefore measured by
surrogate curves, which keep the shape of the scores' curve (`shape_of`) and are as smooth about it.
They are drawn in two ways (`NULLS`) and compared with the metric's curve. The larger of the two
p-values counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from layerscope.core.statistics import Array, bootstrap_rows, mean_ranks

_CHUNK = 4_000_000  # elements of one batch of matrices: 32 MB
# standard deviations; covers 83 to 95 % for dependent pairs of 13 and 25 points, against 55 to 93 %
# unbounded
_MOST_SHIFT = 0.7
_FLAT = 1e-12  # a series whose spread is below this share of its size is constant


@dataclass(frozen=True)
class Measure:
    """One measure: its matrix over pairs of points, and how Γ becomes its value."""

    name: str
    matrix: Callable[[Array], Array]
    signed: bool  # a strong association may be negative
    root: bool = False

    def finish(self, gamma: Array) -> Array:
        """Return the measure's value from Γ."""
        return np.sqrt(np.clip(gamma, 0.0, None)) if self.root else gamma

    def strength(self, value: Array) -> Array:
        """Return the size of a signed measure, the value of another: the number that is compared
        with the null."""
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
    centered = (
        d
        - row / (n - 2)
        - np.swapaxes(row, -1, -2) / (n - 2)
        + row.sum(axis=-2, keepdims=True) / ((n - 1) * (n - 2))
    )
    centered[..., np.arange(n), np.arange(n)] = 0.0
    return centered


def _signs(x: Array) -> Array:
    return np.sign(x[..., :, None] - x[..., None, :])


def _centered_ranks(x: Array) -> Array:
    ranks = mean_ranks(x)
    return (ranks - ranks.mean(axis=-1, keepdims=True))[..., None]


MEASURES = {
    m.name: m
    for m in (
        Measure("dcor", _double_centered, signed=False, root=True),
        Measure("dcor_corrected", _u_centered, signed=False),
        Measure("spearman", _centered_ranks, signed=True),
        Measure("kendall", _signs, signed=True),
    )
}


def is_constant(x: Array) -> bool:
    """Return True if a series does not vary, up to rounding."""
    return bool(np.ptp(x) <= _FLAT * max(1e-300, float(np.max(np.abs(x)))))


def undefined_because(x: Array, y: Array, min_points: int = 4) -> str | None:
    """Return the reason that no measure of these two series exists, or None."""
    if len(x) < min_points:
        return f"{len(x)} points, at least {min_points} are needed"
    if is_constant(x):
        return "the metric is constant"
    return "the scores are constant" if is_constant(y) else None


def association(measure: str, x: Array, y: Array) -> float:
    """Return the value of a measure. Both series must vary: see `undefined_because`.

    >>> association("spearman", np.array([1.0, 2, 3, 4]), np.array([1.0, 4, 9, 16]))
    1.0
    """
    kind = MEASURES[measure]
    gamma = _gamma(kind.matrix(np.asarray(x, float)), kind.matrix(np.asarray(y, float)))
    return float(kind.finish(gamma))


def _gamma(a: Array, b: Array) -> Array:
    """Return Γ of each pair of matrices; NaN where one of them is all zeros."""
    size = np.sqrt(np.einsum("...ij,...ij->...", a, a) * np.einsum("...ij,...ij->...", b, b))
    product = np.einsum("...ij,...ij->...", a, b)
    return np.where(size > 0, product / np.where(size > 0, size, 1.0), np.nan)


# Values by chance: surrogate curves as smooth as the scores', unrelated to the metric. The command,
# the report and the published results use the same.

SURROGATES = 999  # of each kind


def _random_phase(ys: Array, count: int, rng: np.random.Generator) -> Array:
    n = ys.shape[-1]
    # phases assume a cycle: the straight line from a curve's first value to its last is set aside
    lines = np.linspace(ys[:, 0], ys[:, -1], n, axis=-1)
    spectra = np.fft.rfft(ys - lines)
    # phases are drawn for the mean of the curves; each curve keeps its phases relative to the mean
    relative = spectra * np.exp(-1j * np.angle(spectra.mean(0)))
    waves = relative * np.exp(2j * np.pi * rng.random((count, n // 2 + 1)))[:, None]
    waves[..., 0] = 0.0
    if n % 2 == 0:
        waves[..., -1] = relative[:, -1].real * rng.choice([-1.0, 1.0], count)[:, None]
    return lines + np.fft.irfft(waves, n)


def _permuted_increments(ys: Array, count: int, rng: np.random.Generator) -> Array:
    steps = np.diff(ys)
    orders = rng.random((count, steps.shape[-1])).argsort(axis=1)
    drawn = steps[:, orders].swapaxes(0, 1).cumsum(axis=-1)
    return ys[:, :1] + np.concatenate([np.zeros((count, len(ys), 1)), drawn], axis=-1)


NULLS: dict[str, Callable[[Array, int, np.random.Generator], Array]] = {
    # the same waves about the line from the first layer to the last, each shifted at random
    "random phase": _random_phase,
    # the same steps from layer to layer, in random order
    "permuted increments": _permuted_increments,
}


def shape_of(ys: Array) -> Array:
    """Return the shape of curves (k, n) that surrogates keep: the line from the first layer to the
    last, and one bend.

    The bend is the half and the whole wave over the depth that fit best: a valley, early or late.
    """
    n = ys.shape[-1]
    line = np.linspace(ys[:, 0], ys[:, -1], n, axis=-1)
    waves = np.stack([np.sin(np.pi * k * np.linspace(0, 1, n)) for k in (1, 2)])
    return line + (ys - line) @ np.linalg.pinv(waves) @ waves


def surrogate_curves(y: ArrayLike, count: int = SURROGATES, seed: int = 0) -> dict[str, Array]:
    """Return curves with the shape of `y` and as smooth about it, by kind of null: (count, n) each.
    The last layer stays as it is.

    Random phase keeps the spectrum about the shape, permuted increments keep the steps between
    neighbors. Several curves (k, n), such as those of a model's tasks, are drawn together, (count,
    k, n) each: all are shifted by the same phases, or have their steps in the same order, so that
    they stay as alike as they are (Prichard & Theiler 1994).

    >>> curves = surrogate_curves([0.0, 1.0, 3.0, 2.0, 4.0], 10)
    >>> curves["random phase"].shape, curves["permuted increments"].shape
    ((10, 5), (10, 5))
    """
    ys = np.atleast_2d(np.asarray(y, dtype=float))
    inner = ys[:, :-1]
    last = np.broadcast_to(ys[:, -1:], (count, len(ys), 1))
    shape = shape_of(inner)
    drawn = {}
    for i, (kind, draw) in enumerate(NULLS.items()):
        about = draw(inner - shape, count, np.random.default_rng([seed, i]))
        drawn[kind] = np.concatenate([shape + about, last], axis=-1)
    return {kind: curves[:, 0] for kind, curves in drawn.items()} if np.ndim(y) == 1 else drawn


def null_values(measure: str, xs: Array, curves: Array) -> Array:
    """Return the measure of each row of `xs` with each of `curves`: a row per x, a column per
    curve."""
    kind = MEASURES[measure]
    a = kind.matrix(np.asarray(xs, float))
    flat = a.reshape(len(a), -1)
    size = np.sqrt(np.einsum("kij,kij->k", a, a))
    values = np.empty((len(a), len(curves)))
    n = curves.shape[-1]
    step = max(1, _CHUNK // (n * n))
    for start in range(0, len(curves), step):
        b = kind.matrix(curves[start : start + step]).reshape(-1, flat.shape[1])
        values[:, start : start + step] = flat @ b.T / np.sqrt(np.einsum("kj,kj->k", b, b))
    return kind.finish(values / size[:, None])


@dataclass(frozen=True)
class Chance:
    """A measure's values by chance for one pair of curves. `p` is the larger p-value of the two
    nulls.

    `mean` and `limit` (95 %) are of the null that reaches further, in size for signed measures.
    """

    p: float
    p_by_null: dict[str, float]
    mean: float
    limit: float

    @property
    def columns(self) -> dict[str, float]:
        """The values as columns of a table."""
        by_null = {
            "p_phase": self.p_by_null["random phase"],
            "p_increments": self.p_by_null["permuted increments"],
        }
        return {"p": self.p, **by_null, "null_mean": self.mean, "null_95": self.limit}


def compare_with(measure: str, observed: ArrayLike, nulls: Mapping[str, Array]) -> list[Chance]:
    """Return each observed value's place in its nulls (a row per value, a column per draw)."""
    kind = MEASURES[measure]
    value = kind.strength(np.atleast_1d(np.asarray(observed, float)))[:, None]
    p = {}
    mean = {}
    limit = {}
    for name, drawn in nulls.items():
        null = kind.strength(drawn)
        # the share at least as strong, the observed curve included; equal values differ in their
        # last bits
        p[name] = (1 + (null >= value - 1e-12).sum(axis=1)) / (1 + null.shape[1])
        mean[name] = null.mean(axis=1)
        limit[name] = np.quantile(null, 0.95, axis=1)
    out = []
    for i in range(len(value)):
        widest = max(limit, key=lambda name: float(limit[name][i]))
        by_null = {name: float(values[i]) for name, values in p.items()}
        out.append(
            Chance(max(by_null.values()), by_null, float(mean[widest][i]), float(limit[widest][i]))
        )
    return out


RELATED = 0.82
"""The correlation (Pearson's r) of metric and scores that powers are stated for."""

POWER_DRAWS = 100
"""The number of curves that a power is estimated from."""


def corrected_level(measure: str, nulls: Sequence[Mapping[str, Array]]) -> float:
    """Return the p-value that a metric needs where several are tested: the smallest of all is below
    it in 5 % of draws."""
    kind = MEASURES[measure]
    levels = []
    for name in NULLS:
        strength = kind.strength(np.stack([drawn[name] for drawn in nulls]))
        ranks = strength.shape[1] - strength.argsort(axis=1).argsort(axis=1)
        levels.append(float(np.quantile(ranks.min(axis=0) / strength.shape[1], 0.05)))
    return min(levels)


def related_curves(curves: Array, y: Array) -> Array:
    """Return curves whose correlation with `y` is `RELATED`: its sum with the residuals of given
    curves (count, n) on it."""
    goal = (y - y.mean()) / y.std()
    centered = curves - curves.mean(axis=1, keepdims=True)
    # a part that goes with y would change the correlation
    residuals = centered - np.outer(centered @ goal / len(goal), goal)
    size = residuals.std(axis=1, keepdims=True)
    return RELATED * goal + math.sqrt(1 - RELATED**2) * residuals / size


def estimate_power(
    measure: str, x: Array, y: Array, curves: Mapping[str, Array], level: float, seed: int = 0
) -> float:
    """Return the share of curves with p at most `level`, among curves whose correlation with `y` is
    `RELATED` and that are otherwise surrogates of `x`."""
    related = related_curves(surrogate_curves(x, POWER_DRAWS, seed + 1)["random phase"], y)
    values = [association(measure, curve, y) for curve in related]
    nulls = {kind: null_values(measure, related, drawn) for kind, drawn in curves.items()}
    chances = compare_with(measure, values, nulls)
    return float(np.mean([chance.p <= level for chance in chances]))


def bootstrap_interval(
    measure: str, x: Array, y: Array, draws: int = 2000, seed: int = 0
) -> tuple[float, float] | None:
    """Return the bias-corrected 95 % percentile interval over resampled points, or None if most
    resamples are undefined.

    Repeated points raise distance correlation; Efron's (1981) correction removes the shift. It is
    limited to `_MOST_SHIFT`, beyond which the interval would shrink to a point at the edge of the
    draws.
    """
    kind = MEASURES[measure]
    n = len(x)
    rows = bootstrap_rows(n, draws, seed)
    x = np.asarray(x, float)
    y = np.asarray(y, float)
    step = max(1, _CHUNK // (n * n))
    batches = [
        kind.finish(_gamma(kind.matrix(x[r]), kind.matrix(y[r])))
        for r in np.array_split(rows, -(-draws // step))
    ]
    drawn = np.concatenate(batches)
    drawn = drawn[np.isfinite(drawn)]
    if len(drawn) < draws / 2:
        return None
    normal = NormalDist()
    observed = association(measure, x, y)
    below = float(((drawn < observed).sum() + 0.5 * (drawn == observed).sum()) / len(drawn))
    shift = normal.inv_cdf(min(max(below, normal.cdf(-_MOST_SHIFT)), normal.cdf(_MOST_SHIFT)))
    tail = normal.inv_cdf(0.975)
    low, high = (float(np.quantile(drawn, normal.cdf(2 * shift + side * tail))) for side in (-1, 1))
    return min(low, observed), max(high, observed)
