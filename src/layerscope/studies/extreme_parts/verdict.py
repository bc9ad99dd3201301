"""Extreme prompts as a table and in words."""

from __future__ import annotations

import numpy as np
import pandas as pd

from layerscope.metrics import many_intervals
from layerscope.metrics.prompt_entropy import mean_over_prompts
from layerscope.studies.extreme_parts.conditions import Measured
from layerscope.studies.shared.sampling import Mean, mean_of
from layerscope.studies.shared.wording import layers

COLUMNS = ["model", "condition", "level", "site", "layer", "depth", "metric", "sink", "value", "ci_low", "ci_high", "n"]
_VERBS = {1: "rises", -1: "falls", 0: "does not clearly move"}


def tabulate(measured: Measured, label: str, seed: int) -> pd.DataFrame:
    """One row per condition, level, layer and sink setting."""
    places, estimates = [], []
    for (condition, level), values in measured.values.items():
        for sink, held in values.items():
            for j, site in enumerate(measured.sites):
                places.append([label, condition, level, site.name, site.layer, site.depth, "prompt_entropy", sink])
                estimates.append(mean_over_prompts(held[:, j], 0))
    ends = many_intervals(estimates, seed)
    rows = [[*p, e.value, low, high, e.n] for p, e, (low, high) in zip(places, estimates, ends, strict=True)]
    return pd.DataFrame(rows, columns=COLUMNS)


def verdict(measured: Measured, seed: int) -> list[str]:
    """What each condition does between its least and its greatest level, prompt by prompt."""
    out = []
    for condition in dict.fromkeys(condition for condition, _ in measured.values):
        levels = sorted(level for name, level in measured.values if name == condition)
        levels = [level for level in levels if _defined(measured, condition, level)]
        if len(levels) < 2:
            out.append(f"{condition.capitalize()}: fewer than two levels with a value, nothing to compare.")
            continue
        first, last = levels[0], levels[-1]
        span = f"{first:g} → {last:g} tokens" if condition == "length" else f"p = {first:g} → {last:g}"
        change = {
            sink: measured.values[condition, last][sink] - measured.values[condition, first][sink] for sink in ("keep", "drop")
        }
        kept, dropped = (_middle(measured, change[sink], seed) for sink in ("keep", "drop"))
        does = f"{_VERBS[kept.apart]} in the middle half of the layers, {kept} nats"
        text = f"{condition.capitalize()} ({span}): prompt entropy {does}"
        if dropped.apart == kept.apart:
            text += f"; without the sink token {dropped}."
        else:
            text += f"; without the sink token it {_VERBS[dropped.apart]}: {dropped}."
        out += [text, _where(measured, change["keep"], seed)]
    return out


def undefined(measured: Measured) -> list[str]:
    """What has no value at some layer, and why."""
    out = []
    for (condition, level), values in measured.values.items():
        if condition == "length":
            continue
        missing = np.isnan(values["keep"]) & np.isfinite(measured.plain["keep"])
        where = [site.layer for j, site in enumerate(measured.sites) if missing[:, j].any()]
        if where:
            most = int(missing.sum(axis=0).max())
            out.append(
                f"{condition} at p = {level:g}: all tokens of up to {most} prompts have the same state at "
                f"{layers(where)}, so that prompt entropy is not defined there."
            )
    return out


def _defined(measured: Measured, condition: str, level: float) -> bool:
    """Whether at least half of the prompts have values at every middle layer."""
    held = measured.values[condition, level]["keep"][:, _inner(measured)]
    return bool(np.isfinite(held).all(axis=1).mean() >= 0.5)


def _inner(measured: Measured) -> np.ndarray:
    depths = np.array([site.depth for site in measured.sites])
    return (depths >= 0.25) & (depths <= 0.75)


def _middle(measured: Measured, change: np.ndarray, seed: int) -> Mean:
    return mean_of(change[:, _inner(measured)].mean(axis=1), seed)


def _where(measured: Measured, change: np.ndarray, seed: int) -> str:
    each = [mean_of(change[:, j], seed) for j in range(change.shape[1])]
    sites = measured.sites
    up = [site.layer for site, mean in zip(sites, each, strict=True) if mean.apart > 0]
    down = [site.layer for site, mean in zip(sites, each, strict=True) if mean.apart < 0]
    if not up and not down:
        return "  At no single layer is the change clear."
    most = int(np.nanargmax([abs(mean.value) for mean in each]))
    where = [f"up at {layers(up)}"] * bool(up) + [f"down at {layers(down)}"] * bool(down)
    return f"  It is clearly {' and '.join(where)} of {sites[-1].layer}; most at layer {sites[most].layer}, {each[most]}."
