"""Panels of lines or bars as one figure: the atlas, correlations, anything with several small plots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from layerscope.core.statistics import INTERVAL
from layerscope.errors import LayerscopeError
from layerscope.report.drawing import COLORS, escape_math, new_figure, panel_axes, style_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from layerscope.atlas.reproduce.base import Panel
    from layerscope.correlation import Correlations
    from layerscope.report.sources import Chart


def plot_panels(panels: Sequence[Panel], title: str, footnote: str = "") -> Figure:
    """One set of axes per panel; a label keeps its color in all of them."""
    if not panels:
        raise LayerscopeError("there is nothing to draw.")
    columns = min(4 if len(panels) > 6 else 3, len(panels))
    width = 6.4 if len(panels) == 1 else 4.0 * columns
    figure = new_figure(width, 3.1 * math.ceil(len(panels) / columns) + (1.2 if not panels[0].bars else 0.9))
    labels = list(dict.fromkeys(_base(s.label) for panel in panels for s in panel.series if s.label))
    colors = _colors(labels, any(panel.ordered for panel in panels))
    for axis, panel in zip(panel_axes(figure, len(panels), columns), panels, strict=True):
        (_bars if panel.bars else _lines)(axis, panel, colors)
        style_axis(axis, escape_math(panel.title), panel.x_label, panel.y_label)
    handles = _legend(panels, colors)
    if handles:
        figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=min(2 if len(panels) == 1 else 4, len(handles)),
            frameon=False,
            fontsize=8,
        )
    figure.suptitle(escape_math(f"{title}\n{footnote}" if footnote else title), fontsize=9)
    return figure


def draw_charts(part: Any, charts: Sequence[Chart]) -> None:
    """Charts side by side in a figure; a dot marks the layer that a line has a note on."""
    axes = np.atleast_1d(part.subplots(1, len(charts)))
    for axis, chart in zip(axes, charts, strict=True):
        for line, color in zip(chart.lines, itertools.cycle(COLORS)):  # the colors go round
            axis.plot(line.layers, line.values, color=color, linewidth=1.5, label=escape_math(line.name))
            if line.low is not None and line.high is not None:
                axis.fill_between(line.layers, line.low, line.high, color=color, alpha=0.15, linewidth=0)
            if line.note is not None and line.note[0] in line.layers:
                axis.plot(line.note[0], line.values[list(line.layers).index(line.note[0])], "o", color=color, markersize=5)
        axis.legend(fontsize=7, frameon=False)
        style_axis(axis, escape_math(chart.title), "layer", chart.unit)


def _base(label: str) -> str:
    """The label without what differs from panel to panel: `aim-large` and `aim-huge` are one model to the eye."""
    return label.split(" (")[0]


def _colors(labels: Sequence[str], ordered: bool) -> dict[str, Any]:
    if ordered:
        from matplotlib import colormaps

        return {label: colormaps["viridis"](0.78 * i / max(1, len(labels) - 1)) for i, label in enumerate(labels)}
    return {label: COLORS[i % len(COLORS)] for i, label in enumerate(labels)}


def _lines(axis: Any, panel: Panel, colors: dict[str, Any]) -> None:
    color: Any = "black"
    for series in panel.series:
        color = colors[_base(series.label)] if series.label else color  # without a label: the one before, drawn another way
        own = series.label.startswith("your run")
        style: dict[str, Any] = (
            {"linestyle": (0, (3, 2)), "linewidth": 1.0} if series.dashed else {"linewidth": 2.4 if own else 1.5}
        )
        axis.plot(series.x, series.y, color=color, **style)
        if series.mark is not None and len(series.x):
            axis.plot(series.x[series.mark], series.y[series.mark], "o", color=color, markersize=5)


def _bars(axis: Any, panel: Panel, colors: dict[str, Any]) -> None:
    groups = len(panel.series)
    width = 0.8 / groups
    for i, series in enumerate(panel.series):
        places = np.arange(len(series.x)) + (i - (groups - 1) / 2) * width
        color = "#BBBBBB" if series.label == "printed" else colors[_base(series.label)]
        axis.bar(places, series.y, width * 0.92, color=color)
        if panel.whiskers:
            y = np.asarray(series.y)
            low, high = (np.array(side) for side in zip(*panel.whiskers, strict=True))
            axis.errorbar(
                places,
                y,
                yerr=[np.maximum(0, y - low), np.maximum(0, high - y)],
                fmt="none",
                ecolor="black",
                elinewidth=0.9,
                capsize=2,
            )
    if panel.level is not None:
        signs = (1, -1) if min(min(s.y) for s in panel.series) < 0 else (1,)
        for sign in signs:
            axis.axhline(sign * panel.level[0], color="black", linewidth=0.9, linestyle=(0, (3, 2)))
    if min(min(s.y) for s in panel.series) > 30:  # scores: zero says nothing
        axis.set_ylim(bottom=40)
    axis.set_xticks(np.arange(len(panel.series[0].x)), [escape_math(str(x)) for x in panel.series[0].x])


def _legend(panels: Sequence[Panel], colors: dict[str, Any]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    seen = set()
    for panel in panels:
        for series in panel.series:
            base = _base(series.label)
            if not series.label or base in seen:
                continue
            seen.add(base)
            if panel.bars:
                handles.append(Patch(color="#BBBBBB" if base == "printed" else colors[base], label=escape_math(series.label)))
            else:
                handles.append(Line2D([], [], color=colors[base], label=escape_math(series.label)))
        if panel.level is not None and panel.level[1] not in seen:
            seen.add(panel.level[1])
            handles.append(Line2D([], [], color="black", linewidth=0.9, linestyle=(0, (3, 2)), label=panel.level[1]))
    return handles


NAMES = {
    "dcor": "distance correlation",
    "dcor_corrected": "distance correlation², bias-corrected",
    "spearman": "Spearman ρ",
    "kendall": "Kendall τ-b",
}


def correlation_panels(correlations: Correlations) -> list[Panel]:
    """One panel per measure: a bar per metric, its interval, and the chance level."""
    from layerscope.atlas.reproduce.base import Panel, Series

    panels = []
    for measure in dict.fromkeys(correlations.layers["measure"]):
        mine = correlations.layers[correlations.layers["measure"] == measure]
        names: Sequence[str] = [str(m).replace("_", "\n") for m in mine["metric"]]
        series = Series("one point per layer", names, mine["value"].tolist())
        whiskers = [
            (low if low == low else v, high if high == high else v)
            for low, high, v in mine[[*INTERVAL, "value"]].astype(float).to_numpy()
        ]
        level = (float(mine["null_95"].max()), "95 % of unrelated smooth curves lie below")
        panels.append(Panel(NAMES[measure], "", "", [series], bars=True, whiskers=whiskers, level=level))
    return panels
