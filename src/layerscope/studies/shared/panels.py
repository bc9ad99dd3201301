"""The figure that studies of whole models share: one panel per metric, one line per model or step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from layerscope.metrics import metrics
from layerscope.report.figures.drawing import logarithmic
from layerscope.studies.shared.drawing import band, colour_key, new_figure, quiet, sequential, subtitle, tame

# metric, sink, title
PANELS = [
    ("prompt_entropy", "keep", "Prompt entropy"),
    ("prompt_entropy", "drop", "… without the sink token"),
    ("curvature", "keep", "Curvature"),
    ("dataset_entropy", "keep", "Dataset entropy"),
    ("effective_rank", "keep", "Effective rank"),
    ("sink_ratio", "keep", "Largest token norm / median"),
    ("infonce", "keep", "InfoNCE"),
    ("lidar", "keep", "LiDAR"),
    ("dime", "keep", "DiME"),
]


def wanted_panels(table: pd.DataFrame) -> list[tuple[str, str, str]]:
    """The panels that a table has values for, in reading order."""
    held = set(zip(table["metric"], table["sink"], strict=True))
    return [panel for panel in PANELS if panel[:2] in held]


def draw_panel(axis: Any, table: pd.DataFrame, panel: tuple[str, str, str], by: str, colours: Mapping[Any, Any]) -> None:
    """One metric over depth, a line with its band per value of `by`."""
    metric, sink, title = panel
    held = table[(table["metric"] == metric) & (table["sink"] == sink) & (table["normalization"] == "raw")]
    for name, colour in colours.items():
        rows = held[held[by] == name].dropna(subset=["value"])
        if len(rows):
            band(axis, rows, colour, alpha=0.13)
    known = metrics().get(metric)
    axis.set_title(title, fontsize=9, loc="left")
    axis.set_ylabel("" if metric == "sink_ratio" or known is None else known.info.unit, fontsize=8)
    axis.set_xlabel("depth (layer / blocks)", fontsize=8)
    quiet(axis)
    if metric == "sink_ratio":
        logarithmic(axis)


def draw_ordered(table: pd.DataFrame, labels: Sequence[str], shown: Sequence[str], key: str, manifest: dict[str, Any]) -> Any:
    """A panel per metric; models in an order (steps, sizes) that their colours follow, named in a bar."""
    panels = wanted_panels(table)
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(3.6 * columns + 1.2, 2.7 * rows + 0.5)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    colours = dict(zip(labels, sequential(len(labels)), strict=True))
    for axis, panel in zip(axes, panels, strict=False):
        draw_panel(axis, table, panel, "model", colours)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    _same_scale(axes, panels)
    colour_key(figure, list(axes[: len(panels)]), [tame(name) for name in shown], key)
    figure.suptitle(subtitle(manifest), fontsize=9)
    return figure


def _same_scale(axes: Any, panels: list[tuple[str, str, str]]) -> None:
    """Prompt entropy with and without the sink on one scale: that is what they are compared on."""
    both = [axis for axis, panel in zip(axes, panels, strict=False) if panel[0] == "prompt_entropy"]
    if len(both) > 1:
        low, high = min(a.get_ylim()[0] for a in both), max(a.get_ylim()[1] for a in both)
        for axis in both:
            axis.set_ylim(low, high)
