"""Figures of studies with matplotlib: an empty figure, styled axes and scales."""

from __future__ import annotations

from typing import Any

import numpy as np

from layerscope.report.charts import COLORS, styles

__all__ = [
    "COLORS",
    "Figure",
    "escape_math",
    "new_figure",
    "ordered_colors",
    "plain_log_axis",
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


def use_log_scale(axis: Any) -> None:
    """Set a logarithmic scale with plain numbers, if the range is long enough.

    Numbers stand between the decades only where there are few decades.
    """
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
    """Set a logarithmic horizontal axis with plain numbers: 3, not 3 × 10⁰."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def style_axis(axis: Any, title: str = "", x: str = "", y: str = "") -> None:
    """Set small ticks, a faint grid, no frame, a title and the axes' names.

    The name `depth` is written out as depth (layer / blocks).
    """
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
    """Return a name that matplotlib does not read as mathematics."""
    return text.replace("$", r"\$")


def ordered_colors(count: int) -> list[Any]:
    """Return colors from dark to light, which keep their order in grey too."""
    from matplotlib import colormaps

    # the yellow end is hard to see on white
    places = np.linspace(0, 0.78, count) if count > 1 else [0.3]
    return [colormaps["viridis"](place) for place in places]
