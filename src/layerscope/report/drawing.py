"""What every figure needs: colors, an empty figure, a file of it, styled axes, scales and color
keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from layerscope.core.charts import Figure, Style
from layerscope.errors import UnknownNameError
from layerscope.extras import missing
from layerscope.store import atomic

if TYPE_CHECKING:
    pass

__all__ = [
    "COLORS",
    "escape_math",
    "new_figure",
    "ordered_colors",
    "plain_log_axis",
    "save_figure",
    "style_axis",
    "styles",
    "use_log_scale",
]


# Okabe & Ito 2008: told apart by people with any color vision
COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
# The same hues, shifted until lines are clear on white and on near-black
ON_LIGHT = ["#0072B2", "#C85800", "#00855F", "#B0568A", "#2C8CC9", "#A87400", "#3A3A3A"]
ON_DARK = ["#4BA3DB", "#F08A4B", "#3CC79B", "#E29BC3", "#8CCBF2", "#F0B840", "#D8D8D8"]

_FAMILIES = {
    "llama": 0,
    "gpt_neox": 1,
    "bert": 2,
    "mamba": 3,
    "gpt2": 4,
    "gemma": 5,
    "gemma2": 5,
    "gemma3": 5,
    "mamba2": 3,
    "roberta": 2,
    "mpnet": 2,
    "modernbert": 2,
    "eurobert": 2,
    "pythia": 1,
    "llm2vec": 0,
    "llama3": 0,
}
DASHES = ["", "9 4", "2 4", "9 3 2 3", "14 4"]
PLOT_MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "cross": "x",
}  # the page's names and matplotlib's
MARKERS = list(PLOT_MARKERS)


def family_color(family: str) -> int | None:
    """The place of a family in the palette, or None for one without a color of its own."""
    return _FAMILIES.get(family.lower().replace("-", "_"))


def styles(runs: Sequence[tuple[str, str]]) -> list[Style]:
    """A style for each (family, model). A second model of a family takes a free color; a second run
    of a model another dash.

    >>> [s.color for s in styles([("llama", "a"), ("bert", "b"), ("llama", "a")])]
    [0, 2, 0]
    """
    taken: dict[str, int] = {}
    seen: dict[str, int] = {}
    out = []
    reserved = [
        place
        for place in dict.fromkeys(family_color(family) for family, _ in runs)
        if place is not None
    ]
    for family, model in runs:
        if model not in taken:
            own = family_color(family)
            if own is None or own in taken.values():
                free = [i for i in range(len(COLORS)) if i not in taken.values()]
                own = next(
                    (i for i in free if i not in reserved),
                    free[0] if free else len(taken) % len(COLORS),
                )
            taken[model] = own
        run = seen.get(model, 0)
        seen[model] = run + 1
        marker = MARKERS[list(taken).index(model) % len(MARKERS)]
        out.append(Style(taken[model], DASHES[run % len(DASHES)], marker))
    return out


def line_style(dash: str) -> object:
    """A dash as matplotlib writes it."""
    return "-" if not dash else (0, tuple(float(part) / 2 for part in dash.split()))


def new_figure(width: float, height: float) -> Figure:
    """An empty figure that any format can be written from."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise missing("figures") from None
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
    atomic.write(target, lambda stream: figure.savefig(stream, format=kind))
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


def panel_axes(figure: Any, panels: int, columns: int, **options: Any) -> list[Any]:
    """So many sets of axes, side by side in rows of `columns`."""
    axes = figure.subplots(-(-panels // columns), columns, squeeze=False, **options).ravel()
    for axis in axes[panels:]:
        axis.set_visible(False)
    return list(axes[:panels])


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
