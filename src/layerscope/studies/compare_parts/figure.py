"""The figure of models against a base."""

from __future__ import annotations

from typing import Any

import pandas as pd

from layerscope.metrics import metrics
from layerscope.studies.shared.drawing import band, model_colours, new_figure, quiet, subtitle, tame
from layerscope.studies.shared.panels import draw_panel

_PANELS = [
    ("prompt_entropy", "keep", "Prompt entropy"),
    ("prompt_entropy", "drop", "… without the sink token"),
    ("curvature", "keep", "Curvature"),
]


def draw(table: pd.DataFrame, manifest: dict[str, Any]) -> Any:
    """A column per metric: curves of all models, and below them each one's difference from the base."""
    from matplotlib.lines import Line2D

    values, differences = table[table["kind"] == "value"], table[table["kind"] == "difference"]
    labels = list(dict.fromkeys(values["model"]))
    base = manifest["conventions"]["base"]
    colours = model_colours(manifest, labels)
    figure = new_figure(10.8, 5.8)
    axes = figure.subplots(2, len(_PANELS), sharex=True)
    for j, panel in enumerate(_PANELS):
        metric, sink, _ = panel
        draw_panel(axes[0, j], values, panel, "model", colours)
        axes[0, j].set_xlabel("")
        axis = axes[1, j]
        axis.axhline(0, color="#888888", linewidth=0.8)
        for label in labels:
            rows = differences[(differences["model"] == label) & (differences["metric"] == metric)]
            rows = rows[(rows["sink"] == sink) & (rows["normalization"] == "raw")].dropna(subset=["value"])
            if len(rows):
                band(axis, rows, colours[label], alpha=0.25)
        axis.set_xlabel("depth (layer / blocks)", fontsize=8)
        axis.set_ylabel(f"difference ({metrics()[metric].info.unit})", fontsize=8)
        quiet(axis)
    for row in axes[:, :2]:  # with and without the sink on one scale: that is what they are compared on
        low, high = min(a.get_ylim()[0] for a in row), max(a.get_ylim()[1] for a in row)
        for axis in row:
            axis.set_ylim(low, high)
    axes[1, 0].set_title(tame(f"minus {base}, paired over prompts"), fontsize=9, loc="left")
    handles = [Line2D([], [], color=colours[label], label=tame(label + (" (base)" if label == base else ""))) for label in labels]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False, fontsize=8)
    figure.suptitle(subtitle(manifest), fontsize=9)
    return figure
