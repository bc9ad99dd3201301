"""Correlations of metrics with scores as panels of bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layerscope.atlas.reproduce.base import Panel
    from layerscope.correlation import Correlations

NAMES = {
    "dcor": "distance correlation",
    "dcor_corrected": "distance correlation², bias-corrected",
    "spearman": "Spearman ρ",
    "kendall": "Kendall τ-b",
}


def correlation_panels(found: Correlations) -> list[Panel]:
    """One panel per measure: a bar per metric, its interval, and the chance level."""
    from layerscope.atlas.reproduce.base import Panel, Series

    panels = []
    for measure in dict.fromkeys(found.layers["measure"]):
        mine = found.layers[found.layers["measure"] == measure]
        names: Sequence[str] = [str(m).replace("_", "\n") for m in mine["metric"]]
        series = Series("one point per layer", names, mine["value"].tolist())
        whiskers = [
            (low if low == low else v, high if high == high else v)
            for low, high, v in mine[["ci_low", "ci_high", "value"]].astype(float).to_numpy()
        ]
        level = (float(mine["null_95"].max()), "95 % of independent data lie below")
        panels.append(Panel(NAMES[measure], "", "", [series], bars=True, whiskers=whiskers, level=level))
    return panels
