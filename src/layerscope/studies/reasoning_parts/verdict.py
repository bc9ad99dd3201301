"""Who keeps more entropy along the sequence, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from layerscope.metrics.intervals import RESAMPLES
from layerscope.studies.reasoning_parts.measure import Measured
from layerscope.studies.reasoning_parts.tables import group_names, layer_groups
from layerscope.studies.shared.sampling import Mean, mean_of


def verdict(measured: Sequence[Measured], groups: int, seed: int) -> list[str]:
    """Every other model against the first, then how entropy grows in each."""
    out = []
    base = measured[0]
    for other in measured[1:]:
        out += _compared(base, other, groups, seed)
    for m in measured:
        out.append(_growth(m, groups, seed))
    return out


def _compared(base: Measured, other: Measured, groups: int, seed: int) -> list[str]:
    shared = np.intersect1d(base.positions, other.positions)
    out = []
    for sink, note in (("keep", ""), ("drop", " without the sink token")):
        parts = []
        for g, name in enumerate(group_names(groups)):
            one, two = (_curves(m, sink, g, groups, shared) for m in (base, other))
            difference = mean_of(_mean(two - one), seed)
            word = {1: "higher", -1: "lower", 0: "not clearly different"}[difference.apart]
            parts.append(f"{word} in {name}, {difference} nats{_spread(one, two, seed)}")
        out.append(
            f"{other.label} against {base.label}, prompt by prompt at equal numbers of tokens{note}: " + "; ".join(parts) + "."
        )
    return out


def _growth(m: Measured, groups: int, seed: int) -> str:
    whole = int(m.positions[-1])
    early = int(m.positions[np.searchsorted(m.positions, min(max(8, whole // 4), whole))])
    parts = []
    for g, name in enumerate(group_names(groups)):
        curves = _curves(m, "keep", g, groups, m.positions)
        change = curves[:, m.positions == whole][:, 0] - curves[:, m.positions == early][:, 0]
        parts.append(f"{mean_of(change, seed)} in {name}")
    return f"{m.label}: from {early} to {whole} tokens prompt entropy changes by " + "; ".join(parts) + "."


def _curves(m: Measured, sink: str, group: int, groups: int, positions: np.ndarray) -> np.ndarray:
    """(prompts, positions): the mean over a group's layers."""
    chosen = layer_groups(np.array([site.depth for site in m.sites]), groups) == group
    return _mean(m.values[sink][:, chosen][:, :, np.isin(m.positions, positions)], axis=1)


def _mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """The mean of what is defined; NaN, without a warning, where nothing is."""
    count = np.isfinite(values).sum(axis=axis)
    return np.where(count > 0, np.nansum(values, axis=axis) / np.maximum(count, 1), np.nan)


def _spread(one: np.ndarray, two: np.ndarray, seed: int) -> str:
    """The ratio of the spreads between prompts, over positions that all prompts of both reach, with its interval."""
    reached = np.isfinite(one).all(axis=0) & np.isfinite(two).all(axis=0)
    if len(one) < 3 or not reached.any():
        return ""
    one, two = one[:, reached], two[:, reached]
    rng = np.random.default_rng([seed, len(one)])

    def ratio(rows: np.ndarray) -> float:
        first = one[rows].std(axis=0, ddof=1).mean()
        return float(two[rows].std(axis=0, ddof=1).mean() / first) if first > 0 else np.nan

    drawn = [ratio(rng.integers(0, len(one), len(one))) for _ in range(RESAMPLES // 4)]
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    value = Mean(ratio(np.arange(len(one))), float(low), float(high), len(one))
    return f" (spread between prompts × {value.value:.2f}, {value.low:.2f} to {value.high:.2f})"
