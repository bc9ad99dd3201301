"""Panels of lines or bars as one figure: the atlas, correlations, anything with several small plots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from layerscope.errors import LayerscopeError
from layerscope.report.drawing import COLORS, escape_math, line_style, logarithmic, new_figure, panel_axes, sequential, style_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from layerscope.atlas.reproduce.base import Panel
    from layerscope.correlation import Correlations
    from layerscope.report.sources import Chart, Line


def plot_panels(panels: Sequence[Panel], title: str, footnote: str = "") -> Figure:
    """One set of axes per panel; a label keeps its color in all of them."""
    if not panels:
        raise LayerscopeError("there is nothing to draw.")
    columns = min(4 if len(panels) > 6 else 3, len(panels))
    width = 6.4 if len(panels) == 1 else 4.0 * columns
    figure = new_figure(width, 3.1 * math.ceil(len(panels) / columns) + (1.2 if not panels[0].bars else 0.9))
    labels = list(dict.fromkeys(_base(s.label) for panel in panels for s in panel.series if s.label))
    ordered = sequential(len(labels)) if any(panel.ordered for panel in panels) else itertools.cycle(COLORS)
    colors = dict(zip(labels, ordered, strict=False)) | {"printed": "#BBBBBB"}
    handles: dict[str, Any] = {}
    for axis, panel in zip(panel_axes(figure, len(panels), columns), panels, strict=True):
        (_bars if panel.bars else _lines)(axis, panel, colors)
        style_axis(axis, escape_math(panel.title), panel.x_label, panel.y_label)
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(_base(label), handle)
    _legend_below(figure, list(handles.values()), 2 if len(panels) == 1 else 4)
    figure.suptitle(escape_math(f"{title}\n{footnote}" if footnote else title), fontsize=9)
    return figure


def _legend_below(figure: Any, handles: Sequence[Any], most: int) -> None:
    """One legend for all axes, at most so many names beside each other."""
    if handles:
        beside = max(1, min(most, len(handles)))
        figure.legend(handles=handles, loc="outside lower center", ncols=beside, frameon=False, fontsize=8)


def draw_charts(
    figure: Any, charts: Sequence[Chart], *, columns: int = 4, x: str = "layer", together: bool = False, **axes: Any
) -> list[Any]:
    """Charts in rows of `columns` in a figure or a part of one; returns their axes. `x` is layer or depth.

    `together`: one legend below all of them, where they show the same runs.
    """
    from matplotlib.lines import Line2D

    handles: dict[str, Any] = {}
    drawn = panel_axes(figure, len(charts), min(columns, len(charts)), **axes)
    for axis, chart in zip(drawn, charts, strict=True):
        for line, next_color in zip(chart.lines, itertools.cycle(COLORS)):  # the colors go round
            color = next_color if line.look is None else COLORS[line.look.color]
            dash = _DROPPED if line.dropped else line_style("" if line.look is None else line.look.dash)
            _draw_line(axis, line, color, dash, x)
            handle = Line2D([], [], color="grey" if line.dropped else color, linestyle=dash, label=escape_math(line.name))
            handles.setdefault(line.name, handle)
        if chart.log:
            logarithmic(axis)
        if not together:
            axis.legend(fontsize=7, frameon=False)
        style_axis(axis, escape_math(chart.title), x, chart.unit)
    if together and handles:
        # as many beside each other as the figure has room for: a name of 40 letters takes about 3 inches
        fitting = int(figure.bbox.width / figure.dpi / (0.075 * max(map(len, handles)) + 0.6))
        _legend_below(figure, sorted(handles.values(), key=lambda handle: handle.get_color() == "grey"), min(4, fitting))
    return drawn


_DROPPED, _DASHED = (0, (1, 1.5)), (0, (3, 2))


def _draw_line(axis: Any, line: Line, color: str, dash: Any, x: str) -> None:
    """A curve with its band, its note, a point at the best layer and rings at those tied with it."""
    layers, values = np.asarray(line.layers), np.asarray(line.values, float)
    at = layers / (line.blocks or max(1, layers.max())) if x == "depth" and len(layers) else layers
    width = 1.2 if line.dropped else 1.6
    axis.plot(at, values, color=color, linestyle=dash, linewidth=width, label=escape_math(line.name))
    if line.low is not None and line.high is not None and not line.dropped:
        axis.fill_between(at, np.asarray(line.low, float), np.asarray(line.high, float), color=color, alpha=0.16, linewidth=0)
    layer, words = line.note or (None, "")
    for place in np.flatnonzero((layers == layer) & np.isfinite(values))[:1]:
        beside = {"xytext": (-6, 1), "ha": "right", "va": "bottom", "textcoords": "offset points"}
        axis.annotate(escape_math(words), (at[place], values[place]), fontsize=7, color=color, **beside)
    if len(line.tied):
        tied, best = np.isin(layers, line.tied), int(np.nanargmax(values))
        rings = {"markerfacecolor": "white", "markeredgecolor": color, "markeredgewidth": 1}
        axis.plot(at[tied], values[tied], "o", markersize=4, **rings)
        axis.plot([at[best]], [values[best]], "o", markersize=5, color=color)


def _base(label: str) -> str:
    """The label without what differs from panel to panel: `aim-large` and `aim-huge` are one model to the eye."""
    return label.split(" (")[0]


def _lines(axis: Any, panel: Panel, colors: dict[str, Any]) -> None:
    color: Any = "black"
    for series in panel.series:
        color = colors[_base(series.label)] if series.label else color  # without a label: the one before, drawn another way
        width = 1.0 if series.dashed else 2.4 if series.label.startswith("your run") else 1.5
        dash = _DASHED if series.dashed else "-"
        axis.plot(series.x, series.y, color=color, linestyle=dash, linewidth=width, label=escape_math(series.label))
        if series.mark is not None and len(series.x):
            axis.plot(series.x[series.mark], series.y[series.mark], "o", color=color, markersize=5)


def _bars(axis: Any, panel: Panel, colors: dict[str, Any]) -> None:
    groups = len(panel.series)
    width = 0.8 / groups
    for i, series in enumerate(panel.series):
        places = np.arange(len(series.x)) + (i - (groups - 1) / 2) * width
        axis.bar(places, series.y, width * 0.92, color=colors[_base(series.label)], label=escape_math(series.label))
        if panel.whiskers:
            low, high = np.array(panel.whiskers, float).T - np.asarray(series.y)
            ends = np.nan_to_num([np.maximum(0, -low), np.maximum(0, high)])  # some have none
            axis.errorbar(places, series.y, yerr=ends, fmt="none", ecolor="black", elinewidth=0.9, capsize=2)
    lowest = min(min(series.y) for series in panel.series)
    if panel.level is not None:
        level, words = panel.level
        axis.axhline(level, color="black", linewidth=0.9, linestyle=_DASHED, label=words)
        if lowest < 0:
            axis.axhline(-level, color="black", linewidth=0.9, linestyle=_DASHED)
    if lowest > 30:  # scores: zero says nothing
        axis.set_ylim(bottom=40)
    axis.set_xticks(np.arange(len(panel.series[0].x)), [escape_math(str(x)) for x in panel.series[0].x])


NAMES = {
    "dcor": "distance correlation",
    "dcor_corrected": "distance correlation², bias-corrected",
    "spearman": "Spearman ρ",
    "kendall": "Kendall τ-b",
}


def correlation_panels(correlations: Correlations) -> list[Panel]:
    """One panel per measure."""
    from layerscope.atlas.reproduce.base import correlation_panel

    panels = []
    for measure, mine in correlations.layers.groupby("measure", sort=False):
        names = [str(metric).replace("_", "\n") for metric in mine["metric"]]
        panels.append(correlation_panel(NAMES[str(measure)], "one point per layer", names, mine))
    return panels
