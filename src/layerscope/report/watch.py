"""The layers over the training steps, drawn from a watch's table or its CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from layerscope.core.charts import Figure
from layerscope.errors import DataError, UnknownNameError
from layerscope.metrics import in_reading_order, on_log_scale, shown_series
from layerscope.metrics import metrics as every_metric
from layerscope.report.drawing import (
    color_key,
    new_figure,
    ordered_colors,
    panel_axes,
    style_axis,
    use_log_scale,
)

_NO_UNIT = ("", "ratio", "dimensions", "share")  # their titles say it


def plot_watch(source: Any, metrics: list[str] | None = None) -> Figure:
    """A panel per metric: its value against the training step, a line per layer, dark (first) to
    light (last).

    `source` is a `LayerWatch`, its table, or the CSV it wrote.
    """
    table = _table(source)
    logged = set(table["metric"])
    for name in metrics or ():
        if name not in logged:
            raise UnknownNameError("metric in this log", name, logged)
    both = [
        (name, sink) for name in in_reading_order(metrics or logged) for sink in ("keep", "drop")
    ]
    panels = [
        key for key in both if ((table["metric"] == key[0]) & (table["sink"] == key[1])).any()
    ]
    if metrics is None:
        main = shown_series(logged)
        panels = [key for key in panels if key in main] or panels
    columns = min(3, len(panels))
    figure = new_figure(3.5 * columns + 0.5, 2.6 * -(-len(panels) // columns) + 0.3)
    axes = panel_axes(figure, len(panels), columns)
    layers = sorted(table["layer"].unique())
    colors = dict(zip(layers, ordered_colors(len(layers)), strict=True))
    for axis, (metric, sink) in zip(axes, panels, strict=True):
        rows = table[(table["metric"] == metric) & (table["sink"] == sink)]
        for layer, curve in rows.groupby("layer"):
            axis.plot(
                curve["step"],
                curve["value"],
                color=colors[layer],
                linewidth=1.3,
                marker="o",
                markersize=1.8,
            )
        if on_log_scale(metric):
            use_log_scale(axis)
        style_axis(axis, _title(metric, sink), "training step")
    step = max(1, len(layers) // 16)
    shown = [
        layer if i % step == 0 or layer == layers[-1] else "" for i, layer in enumerate(layers)
    ]
    color_key(figure, axes, shown, "layer")
    return figure


def _title(metric: str, sink: str) -> str:
    known = every_metric().get(metric)
    title, unit = (
        (metric.replace("_", " "), "") if known is None else (known.info.title, known.info.unit)
    )
    return ("… without the sink token" if sink == "drop" else title) + (
        f" ({unit})" if unit not in _NO_UNIT else ""
    )


def _table(source: Any) -> pd.DataFrame:
    if isinstance(source, (str, Path)):
        path = Path(source)
        if not path.is_file():
            raise DataError(f"there is no file {path}; a watch writes its CSV where `out` says.")
        table = pd.read_csv(path)
    else:
        table = source if isinstance(source, pd.DataFrame) else source.table
    if table.empty or "metric" not in table:
        raise DataError("nothing was measured yet: there is nothing to draw.")
    return table.sort_values(["metric", "sink", "layer", "step"])
