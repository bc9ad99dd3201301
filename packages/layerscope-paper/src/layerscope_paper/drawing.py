"""Figures of studies with matplotlib: an empty figure, a file of it, styled axes and scales."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.errors import UnknownNameError
from layerscope.report.charts import COLORS, styles
from layerscope.store.atomic import write_bytes

__all__ = [
    "COLORS",
    "Figure",
    "escape_math",
    "new_figure",
    "ordered_colors",
    "plain_log_axis",
    "save_figure",
    "style_axis",
    "styles",
    "use_log_scale",
]

Figure = Any  # matplotlib is imported when something is drawn


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that any format can be written from."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure; the suffix says the format (png, svg, pdf)."""
    target = Path(path)
    known = figure.canvas.get_supported_filetypes()
    kind = target.suffix.lower().removeprefix(".")
    if kind not in known:
        raise UnknownNameError(
            "figure format", target.suffix or target.name, [f".{name}" for name in known]
        )
    stream = io.BytesIO()
    figure.savefig(stream, format=kind)
    write_bytes(target, stream.getvalue())
    return target


def use_log_scale(axis: Any) -> None:
    """A log scale with plain numbers, between the decades only where there are few of them; no log
    scale for a short range."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    low, high = axis.get_ylim()
    if high < 3 * low:
        return
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    plain = FuncFormatter(lambda value, _place: f"{value:g}")
    axis.yaxis.set_major_formatter(plain)
    axis.yaxis.set_minor_formatter(plain if high < 8 * low else NullFormatter())
    axis.tick_params(which="both", labelsize=7)


def plain_log_axis(axis: Any) -> None:
    """A logarithmic horizontal axis with plain numbers: 3, not 3 × 10⁰."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def style_axis(axis: Any, title: str = "", x: str = "", y: str = "") -> None:
    """Small ticks, a faint grid, no frame; with a title and names of the axes (`depth` is told more
    closely)."""
    if title:
        axis.set_title(title, fontsize=9, loc="left")
    if x:
        axis.set_xlabel("depth (layer / blocks)" if x == "depth" else x, fontsize=8)
    if y:
        axis.set_ylabel(y, fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.25, linewidth=0.5)
    axis.spines[["top", "right"]].set_visible(False)


def escape_math(text: str) -> str:
    """A name that matplotlib does not take for mathematics."""
    return text.replace("$", r"\$")


def ordered_colors(count: int) -> list[Any]:
    """Colors from dark to light that keep their order in grey too; the yellow end is left out:
    white paper hides it."""
    from matplotlib import colormaps

    return [colormaps["viridis"](x) for x in (np.linspace(0, 0.78, count) if count > 1 else [0.3])]
