"""Figures of studies: curves with their bands over depth, in grids of panels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.conventions import Reading
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
    """An empty figure and its axes (rows, columns)."""
    figure = new_figure(width, height)
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def label_axes(
    axes: Any, titles: Collection[str] = (), units: Collection[str] = (), x: str = "depth"
) -> None:
    """Quiet axes (rows, columns): a title above each column, a unit beside each row, what x is
    under the lowest."""
    for i, (row, unit) in enumerate(zip_longest(axes, units, fillvalue="")):
        for j, (axis, title) in enumerate(zip_longest(row, titles, fillvalue="")):
            style_axis(
                axis,
                title if i == 0 else "",
                x if i == len(axes) - 1 else "",
                unit if j == 0 else "",
            )


def with_heading(
    figure: Figure, manifest: dict[str, Any], model: str = "", size: int = 9, more: str = ""
) -> Figure:
    """The figure with a line above it: of which model, and what it rests on."""
    figure.suptitle(
        escape_math(f"{model}: " * bool(model)) + subtitle(manifest) + more, fontsize=size
    )
    return figure


def legend(
    where: Any, colors: Mapping[str, Any], dashes: Mapping[str, Any] | None = None, **place: Any
) -> None:
    """The names of colors (and dashes) on an axis, or under a figure if `place` says so."""
    from matplotlib.lines import Line2D

    look = dashes or {}
    handles = [
        Line2D([], [], color=c, label=escape_math(name), linestyle=look.get(name, "-"))
        for name, c in colors.items()
    ]
    where.legend(handles=handles, frameon=False, **{"fontsize": 7, "loc": "lower right", **place})


def legend_below(figure: Figure, colors: Mapping[str, Any], columns: int | None = None) -> None:
    """The names of colors under the figure."""
    legend(figure, colors, loc="outside lower center", ncols=columns or len(colors), fontsize=8)


def model_colors(table: pd.DataFrame) -> dict[str, str]:
    """Return a color for each model of a table."""
    labels = list(dict.fromkeys(table["model"]))
    looks = styles(labels)
    return {label: COLORS[look.color] for label, look in zip(labels, looks, strict=True)}


def draw_band(
    axis: Any, rows: pd.DataFrame, color: Any, x: str = "depth", alpha: float = 0.16, **line: Any
) -> None:
    """One curve with its 95 % band."""
    rows = rows.sort_values(x)
    axis.plot(rows[x], rows["value"], color=color, **{"linewidth": 1.5, **line})
    fill_band(axis, rows, color, x, alpha)


def draw_levels(
    axis: Any, rows: pd.DataFrame, levels: Sequence[float], alpha: float = 0.16
) -> dict[float, Any]:
    """A curve for each level that has values, in colors that follow the levels; the colors by
    level."""
    colors = dict(zip(levels, ordered_colors(len(levels)), strict=True))
    for level, color in colors.items():
        draw_band(axis, rows[rows["level"] == level].dropna(subset=["value"]), color, alpha=alpha)
    return colors


def subtitle(manifest: dict[str, Any]) -> str:
    """What the figure rests on, in a line."""
    conventions = manifest["conventions"]
    corpus = manifest.get("corpus") or {}
    parts = [f"{corpus.get('name', 'texts')}, {manifest.get('texts')} prompts"] if corpus else []
    if "max_length" in conventions:
        parts.append(_reading_words(Reading.of(manifest)))
    of = f"{conventions['of']}: " if conventions.get("of") else ""
    return escape_math(of + ", ".join([*parts, "95 % bands"]))


def wanted_panels(table: pd.DataFrame) -> list[Panel]:
    """The panels that a table has values for, in reading order."""
    measured = set(zip(table["metric"], table["sink"], strict=True))
    known = metrics()
    shown = [series for series in shown_series(table["metric"]) if series in measured]
    return [
        (name, sink, known[name].info.title if sink == "keep" else "… without the sink token")
        for name, sink in shown
    ]


def draw_panel(
    axis: Any,
    table: pd.DataFrame,
    panel: Panel,
    by: str,
    colors: Mapping[Any, Any],
    alpha: float = 0.13,
) -> None:
    """One metric over depth, a line with its band per value of `by`."""
    metric, sink, title = panel
    chosen = table[
        (table["metric"] == metric) & (table["sink"] == sink) & (table["normalization"] == "raw")
    ]
    for name, color in colors.items():
        rows = chosen[chosen[by] == name].dropna(subset=["value"])
        if len(rows):
            draw_band(axis, rows, color, alpha=alpha)
    known = metrics().get(metric)
    style_axis(axis, title, "depth", "" if known is None else known.info.unit)
    if on_log_scale(metric):
        use_log_scale(axis)


def draw_panels(
    axes: Sequence[Any],
    table: pd.DataFrame,
    panels: Sequence[Panel],
    by: str,
    colors: Mapping[Any, Any],
) -> None:
    """A panel on each of the axes; those that are left over are hidden."""
    for axis, panel in zip(axes, panels, strict=False):
        draw_panel(axis, table, panel, by, colors)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)


def panel_grid(
    panels: Sequence[Panel], more_width: float, more_height: float
) -> tuple[Figure, Any]:
    """A figure for so many panels, three beside each other, and its axes in a row."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = grid(rows, columns, 3.6 * columns + more_width, 2.7 * rows + more_height)
    return figure, axes.ravel()


def draw_ordered(
    table: pd.DataFrame,
    labels: Sequence[str],
    shown: Sequence[str],
    key: str,
    manifest: dict[str, Any],
) -> Figure:
    """A panel per metric; models in an order (steps, sizes) that their colors follow, named in a
    bar."""
    panels = wanted_panels(table)
    figure, axes = panel_grid(panels, 1.2, 0.5)
    draw_panels(
        axes, table, panels, "model", dict(zip(labels, ordered_colors(len(labels)), strict=True))
    )
    same_scale(
        [axis for axis, panel in zip(axes, panels, strict=False) if panel[0] == "prompt_entropy"]
    )
    color_key(figure, list(axes[: len(panels)]), [escape_math(name) for name in shown], key)
    return with_heading(figure, manifest)


def same_scale(axes: Sequence[Any]) -> None:
    """One scale with and without the sink: that is what the curves are compared on."""
    limits = [axis.get_ylim() for axis in axes]
    for axis in axes if len(axes) > 1 else ():
        axis.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def fill_band(
    axis: Any, rows: pd.DataFrame, color: Any, x: str = "depth", alpha: float = 0.18
) -> None:
    """The 95 % band of a curve."""
    axis.fill_between(
        rows[x], *(rows[name] for name in INTERVAL), color=color, alpha=alpha, linewidth=0
    )


def color_key(figure: Any, axes: Any, values: Sequence[Any], title: str) -> None:
    """A bar that names the colors of an ordered setting, one even step each."""
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


def _reading_words(reading: Reading) -> str:
    """Return the length and the final norm of what was read, for captions."""
    parts = [] if reading.max_length is None else [f"up to {reading.max_length} tokens"]
    if reading.final_norm is not None:
        parts.append(f"final_norm={reading.final_norm}")
    return ", ".join(parts)
