"""Axes of studies: curves with bands, coloured by an ordered setting or by model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from layerscope.report.figures.drawing import new_figure, quiet, tame
from layerscope.report.figures.palette import COLOURS, styles

__all__ = ["band", "colour_key", "model_colours", "new_figure", "quiet", "sequential", "subtitle", "tame"]


def sequential(count: int) -> list[Any]:
    """Colours from dark to light that keep their order in grey too; the lightest are left out, white paper hides them."""
    from matplotlib import colormaps

    return [colormaps["viridis"](x) for x in (np.linspace(0, 0.9, count) if count > 1 else [0.3])]


def model_colours(manifest: dict[str, Any], labels: Sequence[str]) -> dict[str, str]:
    """A colour for each model: its family's own where it has one."""
    identities = manifest.get("conventions", {}).get("models", {})
    looks = styles([(str(identities.get(label, {}).get("family", "")), label) for label in labels])
    return {label: COLOURS[look.colour] for label, look in zip(labels, looks, strict=True)}


def band(axis: Any, rows: pd.DataFrame, colour: Any, x: str = "depth", alpha: float = 0.16, **line: Any) -> None:
    """One curve with its 95 % band."""
    rows = rows.sort_values(x)
    axis.plot(rows[x], rows["value"], color=colour, **{"linewidth": 1.5, **line})
    axis.fill_between(rows[x], rows["ci_low"], rows["ci_high"], color=colour, alpha=alpha, linewidth=0)


def colour_key(figure: Any, axes: Any, values: Sequence[Any], title: str) -> None:
    """A bar that names the colours of an ordered setting, one even step each."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    count = len(values)
    colours = ListedColormap(sequential(count))
    held = ScalarMappable(BoundaryNorm(np.arange(count + 1) - 0.5, count), colours)
    bar = figure.colorbar(held, ax=axes, ticks=range(count), shrink=0.9, pad=0.015, aspect=40)
    bar.ax.set_yticklabels([str(v) for v in values], fontsize=7)
    bar.ax.set_title(title, fontsize=7, loc="left")
    bar.ax.tick_params(length=0)
    bar.minorticks_off()
    bar.outline.set_visible(False)


def subtitle(manifest: dict[str, Any]) -> str:
    """What the figure rests on, in a line."""
    conventions, corpus = manifest["conventions"], manifest.get("corpus") or {}
    parts = [f"{corpus.get('name', 'texts')}, {manifest.get('texts')} prompts"] if corpus else []
    if "max_length" in conventions:
        parts += [f"up to {conventions['max_length']} tokens", f"final_norm={conventions['final_norm']}"]
    of = f"{conventions['of']}: " if conventions.get("of") else ""
    return tame(of + ", ".join([*parts, "95 % bands"]))
