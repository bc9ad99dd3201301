"""A map on paper: some layers side by side, a row per reading."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from layerscope.core.charts import Figure
from layerscope.errors import InvalidValueError, UnknownNameError
from layerscope.maps import LayerMap
from layerscope.report.drawing import COLORS, escape_math, new_figure

_PANELS = 4
_MOST = len(COLORS)
_GRAY = "#9a9ea6"


def plot_map(given: LayerMap, layers: Sequence[int] | None = None, color: str | None = None) -> Figure:
    """The points of each reading at some layers (four of them, evenly, with the one in use last), colored by a column."""
    if color is not None and color not in given.columns:
        raise UnknownNameError("column of this map", color, given.columns)
    of, names = _groups(given, color)
    columns = _PANELS if layers is None else len(layers)
    figure = new_figure(2.7 * columns, 2.7 * len(given.readings) + 0.5)
    axes = figure.subplots(len(given.readings), columns, squeeze=False)
    for row, reading in zip(axes, given.readings, strict=True):
        layout = reading.layout
        chosen = _spread([k for k in layout.layers if k <= reading.at]) if layers is None else list(layers)
        wrong = [k for k in chosen if k not in layout.layers]
        if wrong:
            raise InvalidValueError(f"this map has no layer {wrong[0]}; it has {layout.layers[0]} to {layout.layers[-1]}.")
        for axis, layer in zip(row, chosen, strict=False):
            points = layout.points[layout.layers.index(layer)]
            for k, name in enumerate(names):
                some = points[of == k]
                ink = COLORS[k] if k < _MOST - 1 or len(names) <= _MOST - 1 else _GRAY
                axis.scatter(some[:, 0], some[:, 1], s=9, color=ink, linewidths=0, alpha=0.85, label=escape_math(name))
            trust = layout.trust[layout.layers.index(layer)]
            used = " *" if layer == reading.at else ""
            told = "all alike" if np.isnan(trust) else f"trust {trust:.2f}"
            axis.set_title(escape_math(f"{reading.name}, layer {layer}{used} ({told})"), fontsize=8)
        for axis in row:
            axis.set_xticks([])
            axis.set_yticks([])
            axis.spines[:].set_color("#d5d7db")
        for axis in row[len(chosen) :]:
            axis.set_visible(False)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8, markerscale=1.8)
    return figure


def _spread(layers: list[int]) -> list[int]:
    """Four of the layers, evenly, without the first where there are more, and with the last."""
    if len(layers) <= _PANELS:
        return layers
    return [layers[round(i)] for i in np.linspace(len(layers) / (_PANELS + 1), len(layers) - 1, _PANELS)]


def _groups(given: LayerMap, color: str | None) -> tuple[np.ndarray, list[str]]:
    """The group of each point and the groups' names: a column of words as it is, numbers by quarters."""
    words = [name for name, values in given.columns.items() if isinstance(values[0], str)]
    values = given.columns[color or words[0]]
    if any(isinstance(value, int | float) for value in values):
        numbers = np.array([np.nan if value is None else float(value) for value in values])
        ends = np.nanquantile(numbers, [0.25, 0.5, 0.75])
        return np.searchsorted(ends, np.nan_to_num(numbers, nan=float(ends[0]))), ["lowest quarter", "second", "third", "highest"]
    names = sorted(dict.fromkeys(values), key=lambda word: (-values.count(word), word))
    kept = names if len(names) <= _MOST - 1 else [*names[: _MOST - 2], "others"]
    return np.array([kept.index(v) if v in kept else len(kept) - 1 for v in values]), [name or "(empty)" for name in kept]
