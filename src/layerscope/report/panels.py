"""Charts of lines or bars, drawn: profiles, probes, anything with several small plots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from layerscope.core.charts import Chart, Figure, Line
from layerscope.errors import LayerscopeError
from layerscope.report.drawing import (
    COLORS,
    escape_math,
    line_style,
    new_figure,
    ordered_colors,
    panel_axes,
    style_axis,
    use_log_scale,
)

__all__ = ["plot_charts"]

_DROPPED, _DASHED = (0, (1, 1.5)), (0, (3, 2))


def plot_charts(charts: Sequence[Chart], title: str, footnote: str = "") -> Figure:
    """A figure of charts with one legend."""
    if not charts:
        raise LayerscopeError("there is nothing to draw.")
    columns = min(4 if len(charts) > 6 else 3, len(charts))
    width = 6.4 if len(charts) == 1 else 4.0 * columns
    figure = new_figure(
        width, 3.1 * math.ceil(len(charts) / columns) + (1.2 if not charts[0].bars else 0.9)
    )
    draw_charts(figure, charts, columns=columns, together=True, alike=True)
    figure.suptitle(escape_math(f"{title}\n{footnote}" if footnote else title), fontsize=9)
    return figure


def draw_charts(
    figure: Any,
    charts: Sequence[Chart],
    *,
    columns: int = 4,
    x: str = "layer",
    together: bool = False,
    alike: bool = False,
    **axes: Any,
) -> list[Any]:
    """Charts in rows of `columns` in a figure or a part of one; returns their axes. A name keeps
    its color in all of them.

    `x` is layer or depth, for charts over layers. `together`: one legend below all of them.
    `alike`: what a name has in brackets differs from chart to chart, and its color does not: `aim
    (large)` and `aim (huge)` are one model to the eye.
    """
    from matplotlib.lines import Line2D

    handles: dict[str, Any] = {}
    plain = [
        line.name for chart in charts for line in chart.lines if line.name and line.look is None
    ]
    bases = {name: name.split(" (")[0] if alike else name for name in plain}
    names = list(dict.fromkeys(bases.values()))
    ordered = (
        ordered_colors(len(names))
        if any(chart.ordered for chart in charts)
        else itertools.cycle(COLORS)
    )
    shades = dict(zip(names, ordered, strict=False)) | {"printed": "#BBBBBB"}
    colors = {name: shades[base] for name, base in bases.items()}
    drawn = panel_axes(figure, len(charts), min(columns, len(charts)), **axes)
    for axis, chart in zip(drawn, charts, strict=True):
        (_draw_bars if chart.bars else _draw_lines)(axis, chart, colors, x)
        if chart.log:
            use_log_scale(axis)
        style_axis(axis, escape_math(chart.title), x if chart.x is None else chart.x, chart.unit)
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(name.split(" (")[0] if alike else name, handle)
        if not together:
            axis.legend(fontsize=7, frameon=False)
    for name in {line.name for chart in charts for line in chart.lines if line.dropped}:
        handles[name] = Line2D([], [], color="grey", linestyle=_DROPPED, label=escape_math(name))
    if together and handles:
        # as many beside each other as the figure has room for: a name of 40 letters takes about 3
        # inches
        fitting = int(
            figure.bbox.width
            / figure.dpi
            / (0.075 * max(len(one.get_label()) for one in handles.values()) + 0.6)
        )
        beside = max(1, min(4, len(handles), fitting))
        figure.legend(
            handles=list(handles.values()),
            loc="outside lower center",
            ncols=beside,
            frameon=False,
            fontsize=8,
        )
    return drawn


def _draw_lines(axis: Any, chart: Chart, colors: dict[str, Any], x: str) -> None:
    color: Any = "black"
    for line in chart.lines:
        dash, width = line_style("" if line.look is None else line.look.dash), 1.6
        if line.name:
            color = colors[line.name] if line.look is None else COLORS[line.look.color]
            width = 2.4 if line.name.startswith("your run") else width
        if line.dropped or not line.name:
            dash, width = (_DROPPED, 1.2) if line.dropped else (_DASHED, 1.0)
        layers = np.asarray(line.layers)
        by_depth = x == "depth" and chart.x is None and len(layers)
        at = layers / (line.blocks or max(1, layers.max())) if by_depth else layers
        label = "" if line.dropped else escape_math(line.name)
        axis.plot(at, line.values, color=color, linestyle=dash, linewidth=width, label=label)
        _draw_marks(axis, line, at, color)


def _draw_marks(axis: Any, line: Line, at: Any, color: Any) -> None:
    """A curve's band, its note, a point at the best layer and rings at those tied with it."""
    layers, values = np.asarray(line.layers), np.asarray(line.values, float)
    if line.low is not None and line.high is not None and not line.dropped:
        axis.fill_between(
            at,
            np.asarray(line.low, float),
            np.asarray(line.high, float),
            color=color,
            alpha=0.16,
            linewidth=0,
        )
    layer, words = line.note or (None, "")
    for place in np.flatnonzero((layers == layer) & np.isfinite(values))[:1]:
        beside = {"xytext": (-6, 1), "ha": "right", "va": "bottom", "textcoords": "offset points"}
        axis.annotate(
            escape_math(words), (at[place], values[place]), fontsize=7, color=color, **beside
        )
        if not words:
            axis.plot([at[place]], [values[place]], "o", color=color, markersize=5)
    if len(line.tied):
        tied, best = np.isin(layers, line.tied), int(np.nanargmax(values))
        rings = {"markerfacecolor": "white", "markeredgecolor": color, "markeredgewidth": 1}
        axis.plot(at[tied], values[tied], "o", markersize=4, **rings)
        axis.plot([at[best]], [values[best]], "o", markersize=5, color=color)


def _draw_bars(axis: Any, chart: Chart, colors: dict[str, Any], x: str) -> None:
    groups, names = len(chart.lines), chart.lines[0].layers
    width = 0.8 / groups
    for i, line in enumerate(chart.lines):
        places = np.arange(len(names)) + (i - (groups - 1) / 2) * width
        axis.bar(
            places, line.values, width * 0.92, color=colors[line.name], label=escape_math(line.name)
        )
        if line.low is not None and line.high is not None:
            low, high = np.array([line.low, line.high], float) - np.asarray(line.values)
            ends = np.nan_to_num([np.maximum(0, -low), np.maximum(0, high)])  # some have none
            axis.errorbar(
                places,
                line.values,
                yerr=ends,
                fmt="none",
                ecolor="black",
                elinewidth=0.9,
                capsize=2,
            )
    lowest = min(min(line.values) for line in chart.lines)
    if chart.level is not None:
        level, words = chart.level
        for sign in (1, -1) if lowest < 0 else (1,):
            axis.axhline(
                sign * level,
                color="black",
                linewidth=0.9,
                linestyle=_DASHED,
                label=words if sign > 0 else "",
            )
    if lowest > 30:  # scores: zero says nothing
        axis.set_ylim(bottom=40)
    axis.set_xticks(np.arange(len(names)), [escape_math(str(name)) for name in names])
