"""Correlations as charts, and as what a notebook shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layerscope.core.charts import Chart, Line
from layerscope.core.statistics import INTERVAL
from layerscope.report.notebook import block_html
from layerscope.report.sources import Block

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
    """A bar per row of correlations, its interval, and what chance gives."""
    low, high = (rows[end].astype(float).tolist() for end in INTERVAL)
    level = (float(rows["null_95"].max()), "95 % of unrelated smooth curves lie below")
    line = Line(label, names, rows["value"].tolist(), low, high)
    return Chart(title, [line], x="", bars=True, level=level)


def correlation_charts(correlations: Correlations) -> list[Chart]:
    """One chart per measure."""
    charts = []
    for measure, rows in correlations.layers.groupby("measure", sort=False):
        names = [str(metric).replace("_", "\n") for metric in rows["metric"]]
        title = MEASURE_NAMES[str(measure)]
        charts.append(correlation_chart(title, "one point per layer", names, rows))
    return charts


def correlations_html(correlations: Correlations) -> str:
    """Every metric with its interval, and what unrelated curves as smooth reach."""
    model = str(correlations.facts.get("model", "Metrics"))
    columns = ["metric", "measure", "value", *INTERVAL, "null_95", "p_adjusted", "layers", "tasks"]
    ends = dict(zip(INTERVAL, ("95 % from", "to"), strict=True))
    table = correlations.layers[columns].rename(
        columns={**ends, "null_95": "chance, 95 %", "p_adjusted": "p, all metrics"}
    )
    caption = "an interval that passes the chance mark is not enough: judge by p"
    block = Block(
        "correlation",
        f"{model}: metrics against scores, one point per layer",
        model,
        [],
        correlation_charts(correlations),
        {caption: table},
        warnings=[str(note) for note in correlations.facts.get("notes") or ()],
        inline=[caption],
    )
    return block_html(block)
