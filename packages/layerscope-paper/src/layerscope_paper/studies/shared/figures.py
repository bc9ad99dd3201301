"""Figures of studies: curves with their bands over depth, in grids of panels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.identity import Reading
from layerscope.core.statistics import INTERVAL
from layerscope.metrics import metrics, on_log_scale, shown_series
from layerscope_paper.drawing import (
    COLORS,
    Figure,
    escape_math,
    new_figure,
    ordered_colors,
    style_axis,
    styles,
    use_log_scale,
)

DOTTED = (0, (1, 1.5))
Panel = tuple[str, str, str]  # metric, sink, title


def grid(rows: int, columns: int, width: float, height: float, **shared: Any) -> tuple[Figure, Any]:
    """Return an empty figure and its axes (rows, columns)."""
    figure = new_figure(width, height)
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def label_axes(
    axes: Any, titles: Collection[str] = (), units: Collection[str] = (), x: str = "depth"
) -> None:
    """Style axes (rows, columns): a title above each column, a unit beside each row, the name of x
    under the lowest."""
    for i, (row, unit) in enumerate(zip_longest(axes, units, fillvalue="")):
        for j, (axis, title) in enumerate(zip_longest(row, titles, fillvalue="")):
            name = x if i == len(axes) - 1 else ""
            style_axis(axis, "" if i else title, name, "" if j else unit)


def with_heading(
    figure: Figure, manifest: dict[str, Any], model: str = "", size: int = 9, suffix: str = ""
) -> Figure:
    """Write a line above the figure: its model, texts and conventions."""
    prefix = escape_math(f"{model}: ") if model else ""
    figure.suptitle(prefix + subtitle(manifest) + suffix, fontsize=size)
    return figure


def legend(
    owner: Any, colors: Mapping[str, Any], dashes: Mapping[str, Any] | None = None, **place: Any
) -> None:
    """Name colors (and dashes) on an axis, or on a figure at a `place`."""
    from matplotlib.lines import Line2D

    styles_by_name = dashes or {}
    handles = [
        Line2D([], [], color=c, label=escape_math(name), linestyle=styles_by_name.get(name, "-"))
        for name, c in colors.items()
    ]
    owner.legend(handles=handles, frameon=False, **{"fontsize": 7, "loc": "lower right", **place})


def legend_below(figure: Figure, colors: Mapping[str, Any], columns: int | None = None) -> None:
    """Name colors under the figure."""
    legend(figure, colors, loc="outside lower center", ncols=columns or len(colors), fontsize=8)


def model_colors(table: pd.DataFrame) -> dict[str, str]:
    """Return a color for each model of a table."""
    labels = list(dict.fromkeys(table["model"]))
    looks = styles(labels)
    return {label: COLORS[look.color] for label, look in zip(labels, looks, strict=True)}


def draw_band(
    axis: Any, rows: pd.DataFrame, color: Any, x: str = "depth", alpha: float = 0.16, **line: Any
) -> None:
    """Draw one curve with its 95 % band."""
    rows = rows.sort_values(x)
    axis.plot(rows[x], rows["value"], color=color, **{"linewidth": 1.5, **line})
    low, high = (rows[name] for name in INTERVAL)
    axis.fill_between(rows[x], low, high, color=color, alpha=alpha, linewidth=0)


def draw_levels(
    axis: Any, rows: pd.DataFrame, levels: Sequence[float], alpha: float = 0.16
) -> dict[float, Any]:
    """Draw a curve for each level, in colors that follow the levels; return the colors by level."""
    colors = dict(zip(levels, ordered_colors(len(levels)), strict=True))
    for level, color in colors.items():
        draw_band(axis, rows[rows["level"] == level].dropna(subset=["value"]), color, alpha=alpha)
    return colors


def subtitle(manifest: dict[str, Any]) -> str:
    """Return the texts and conventions of a figure in a line."""
    conventions = manifest["conventions"]
    corpus = manifest.get("corpus") or {}
    facts = [f"{corpus.get('name', 'texts')}, {manifest.get('texts')} prompts"] if corpus else []
    if "max_length" in conventions:
        reading = Reading.of(manifest)
        if reading.max_length is not None:
            facts.append(f"up to {reading.max_length} tokens")
        if reading.final_norm is not None:
            facts.append(f"final_norm={reading.final_norm}")
    prefix = f"{conventions['of']}: " if conventions.get("of") else ""
    return escape_math(prefix + ", ".join([*facts, "95 % bands"]))


def measured_panels(table: pd.DataFrame) -> list[Panel]:
    """Return the panels that a table has values for, in reading order."""
    measured = set(zip(table["metric"], table["sink"], strict=True))
    panels = []
    for name, sink in shown_series(table["metric"]):
        if (name, sink) in measured:
            title = metrics()[name].info.title if sink == "keep" else "… without the sink token"
            panels.append((name, sink, title))
    return panels


def draw_panel(
    axis: Any,
    table: pd.DataFrame,
    panel: Panel,
    by: str,
    colors: Mapping[Any, Any],
    alpha: float = 0.13,
) -> None:
    """Draw one metric over depth, a line with its band per value of `by`."""
    metric, sink, title = panel
    chosen = table[
        (table["metric"] == metric) & (table["sink"] == sink) & (table["normalization"] == "raw")
    ]
    for name, color in colors.items():
        rows = chosen[chosen[by] == name].dropna(subset=["value"])
        if len(rows):
            draw_band(axis, rows, color, alpha=alpha)
    unit = metrics()[metric].info.unit if metric in metrics() else ""
    style_axis(axis, title, "depth", unit)
    if on_log_scale(metric):
        use_log_scale(axis)


def draw_panels(
    axes: Sequence[Any],
    table: pd.DataFrame,
    panels: Sequence[Panel],
    by: str,
    colors: Mapping[Any, Any],
) -> None:
    """Draw a panel on each of the axes, and hide the remaining axes."""
    for axis, panel in zip(axes, panels, strict=False):
        draw_panel(axis, table, panel, by, colors)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)


def panel_grid(
    panels: Sequence[Panel], more_width: float, more_height: float
) -> tuple[Figure, Any]:
    """Return a figure for these panels, three beside each other, and its axes."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = grid(rows, columns, 3.6 * columns + more_width, 2.7 * rows + more_height)
    return figure, axes.ravel()


def draw_ordered(
    table: pd.DataFrame,
    labels: Sequence[str],
    names: Sequence[str],
    key: str,
    manifest: dict[str, Any],
) -> Figure:
    """Draw a panel per metric; colors follow the order of the models (steps, sizes), which a bar
    names."""
    panels = measured_panels(table)
    figure, axes = panel_grid(panels, 1.2, 0.5)
    colors = dict(zip(labels, ordered_colors(len(labels)), strict=True))
    draw_panels(axes, table, panels, "model", colors)
    same_scale(
        [axis for axis, panel in zip(axes, panels, strict=False) if panel[0] == "prompt_entropy"]
    )
    color_key(figure, list(axes[: len(panels)]), [escape_math(name) for name in names], key)
    return with_heading(figure, manifest)


def same_scale(axes: Sequence[Any]) -> None:
    """Set one vertical scale for several axes, whose curves are compared."""
    limits = [axis.get_ylim() for axis in axes]
    for axis in axes if len(axes) > 1 else ():
        axis.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def color_key(figure: Any, axes: Any, values: Sequence[Any], title: str) -> None:
    """Draw a bar that names the colors of an ordered setting, one even step each."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    count = len(values)
    colors = ListedColormap(ordered_colors(count))
    mappable = ScalarMappable(BoundaryNorm(np.arange(count + 1) - 0.5, count), colors)
    bar = figure.colorbar(mappable, ax=axes, ticks=range(count), shrink=0.9, pad=0.015, aspect=40)
    bar.ax.set_yticklabels([str(v) for v in values], fontsize=7)
    bar.ax.set_title(title, fontsize=7, loc="left")
    bar.ax.tick_params(length=0)
    bar.minorticks_off()
    bar.outline.set_visible(False)
