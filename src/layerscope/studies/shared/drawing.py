"""Figures of studies: curves with bands, colored by model or by an ordered setting, and panels of one metric each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from layerscope.core.reading import Reading
from layerscope.metrics import metrics, on_log_scale, shown_series
from layerscope.report.drawing import COLORS, color_key, logarithmic, new_figure, quiet, sequential, styles, tame


def model_colors(manifest: dict[str, Any], labels: Sequence[str]) -> dict[str, str]:
    """A color for each model: its family's own where it has one."""
    identities = manifest.get("conventions", {}).get("models", {})
    looks = styles([(str(identities.get(label, {}).get("family", "")), label) for label in labels])
    return {label: COLORS[look.color] for label, look in zip(labels, looks, strict=True)}


def band(axis: Any, rows: pd.DataFrame, color: Any, x: str = "depth", alpha: float = 0.16, **line: Any) -> None:
    """One curve with its 95 % band."""
    rows = rows.sort_values(x)
    axis.plot(rows[x], rows["value"], color=color, **{"linewidth": 1.5, **line})
    axis.fill_between(rows[x], rows["ci_low"], rows["ci_high"], color=color, alpha=alpha, linewidth=0)


def subtitle(manifest: dict[str, Any]) -> str:
    """What the figure rests on, in a line."""
    conventions, corpus = manifest["conventions"], manifest.get("corpus") or {}
    parts = [f"{corpus.get('name', 'texts')}, {manifest.get('texts')} prompts"] if corpus else []
    if "max_length" in conventions:
        parts.append(Reading.of(manifest).in_words)
    of = f"{conventions['of']}: " if conventions.get("of") else ""
    return tame(of + ", ".join([*parts, "95 % bands"]))


def wanted_panels(table: pd.DataFrame) -> list[tuple[str, str, str]]:
    """The panels that a table has values for, in reading order."""
    measured, known = set(zip(table["metric"], table["sink"], strict=True)), metrics()
    shown = [series for series in shown_series(table["metric"]) if series in measured]
    return [(name, sink, known[name].info.title if sink == "keep" else "… without the sink token") for name, sink in shown]


def draw_panel(axis: Any, table: pd.DataFrame, panel: tuple[str, str, str], by: str, colors: Mapping[Any, Any]) -> None:
    """One metric over depth, a line with its band per value of `by`."""
    metric, sink, title = panel
    chosen = table[(table["metric"] == metric) & (table["sink"] == sink) & (table["normalization"] == "raw")]
    for name, color in colors.items():
        rows = chosen[chosen[by] == name].dropna(subset=["value"])
        if len(rows):
            band(axis, rows, color, alpha=0.13)
    known = metrics().get(metric)
    axis.set_title(title, fontsize=9, loc="left")
    axis.set_ylabel("" if known is None else known.info.unit, fontsize=8)
    axis.set_xlabel("depth (layer / blocks)", fontsize=8)
    quiet(axis)
    if on_log_scale(metric):
        logarithmic(axis)


def draw_ordered(table: pd.DataFrame, labels: Sequence[str], shown: Sequence[str], key: str, manifest: dict[str, Any]) -> Any:
    """A panel per metric; models in an order (steps, sizes) that their colors follow, named in a bar."""
    panels = wanted_panels(table)
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(3.6 * columns + 1.2, 2.7 * rows + 0.5)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    colors = dict(zip(labels, sequential(len(labels)), strict=True))
    for axis, panel in zip(axes, panels, strict=False):
        draw_panel(axis, table, panel, "model", colors)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    _same_scale(axes, panels)
    color_key(figure, list(axes[: len(panels)]), [tame(name) for name in shown], key)
    figure.suptitle(subtitle(manifest), fontsize=9)
    return figure


def _same_scale(axes: Any, panels: list[tuple[str, str, str]]) -> None:
    """Prompt entropy with and without the sink on one scale: that is what they are compared on."""
    both = [axis for axis, panel in zip(axes, panels, strict=False) if panel[0] == "prompt_entropy"]
    if len(both) > 1:
        low, high = min(a.get_ylim()[0] for a in both), max(a.get_ylim()[1] for a in both)
        for axis in both:
            axis.set_ylim(low, high)
