"""The layers over the training steps, drawn from a watch's table or its CSV."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from layerscope.errors import DataError, UnknownNameError
from layerscope.report.drawing import color_key, logarithmic, new_figure, quiet, sequential

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLES = {
    ("prompt_entropy", "keep"): "Prompt entropy (nats)",
    ("prompt_entropy", "drop"): "… without the sink token (nats)",
    ("sink_ratio", "keep"): "Sink ratio",
    ("dataset_entropy", "keep"): "Dataset entropy (nats)",
    ("effective_rank", "keep"): "Effective rank",
    ("curvature", "keep"): "Curvature (radians)",
    ("curvature", "drop"): "… without the sink token (radians)",
}
_SHOWN = ["prompt_entropy", "sink_ratio", "dataset_entropy", "effective_rank", "curvature"]


def plot_watch(source: Any, metrics: list[str] | None = None) -> Figure:
    """A panel per metric: its value against the training step, a line per layer, dark (first) to light (last).

    `source` is a `LayerWatch`, its table, or the CSV it wrote.
    """
    table = _table(source)
    held = set(table["metric"])
    for name in metrics or ():
        if name not in held:
            raise UnknownNameError("metric in this log", name, held)
    wanted = metrics or _SHOWN
    panels = [key for key in _TITLES if key[0] in wanted and ((table["metric"] == key[0]) & (table["sink"] == key[1])).any()]
    if metrics is None:  # six panels: a twin of the curvature panel adds little
        panels = [key for key in panels if key != ("curvature", "drop")]
    columns = min(3, len(panels))
    figure = new_figure(3.5 * columns + 0.5, 2.6 * -(-len(panels) // columns) + 0.3)
    axes = figure.subplots(-(-len(panels) // columns), columns, squeeze=False)
    layers = sorted(table["layer"].unique())
    colors = dict(zip(layers, sequential(len(layers)), strict=True))
    for axis, (metric, sink) in zip(axes.ravel(), panels, strict=False):
        rows = table[(table["metric"] == metric) & (table["sink"] == sink)]
        for layer, curve in rows.groupby("layer"):
            axis.plot(curve["step"], curve["value"], color=colors[layer], linewidth=1.3, marker="o", markersize=1.8)
        if metric == "sink_ratio":
            logarithmic(axis)
        axis.set_title(_TITLES[metric, sink], fontsize=9, loc="left")
        axis.set_xlabel("training step", fontsize=8)
        quiet(axis)
    for axis in axes.ravel()[len(panels) :]:
        axis.set_axis_off()
    step = max(1, len(layers) // 16)
    shown = [layer if i % step == 0 or layer == layers[-1] else "" for i, layer in enumerate(layers)]
    color_key(figure, list(axes.ravel()), shown, "layer")
    return figure


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
