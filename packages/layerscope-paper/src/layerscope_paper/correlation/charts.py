"""Correlations as bar charts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layerscope.core.charts import Chart, Line
from layerscope.core.statistics import INTERVAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from layerscope_paper.correlation.study import Correlations

MEASURE_NAMES = {
    "dcor": "distance correlation",
    "dcor_corrected": "distance correlation², bias-corrected",
    "spearman": "Spearman ρ",
    "kendall": "Kendall τ-b",
}


def correlation_chart(title: str, label: str, names: Sequence[str], rows: pd.DataFrame) -> Chart:
    """Return a chart with a bar per row of correlations, its interval, and the level of chance."""
    low, high = (rows[name].astype(float).tolist() for name in INTERVAL)
    level = (float(rows["null_95"].max()), "95 % of unrelated smooth curves lie below")
    line = Line(label, names, rows["value"].tolist(), low, high)
    return Chart(title, [line], x="", bars=True, level=level)


def correlation_charts(correlations: Correlations) -> list[Chart]:
    """Return one chart per measure."""
    charts = []
    for measure, rows in correlations.layers.groupby("measure", sort=False):
        names = [str(metric).replace("_", "\n") for metric in rows["metric"]]
        title = MEASURE_NAMES[str(measure)]
        charts.append(correlation_chart(title, "one point per layer", names, rows))
    return charts
