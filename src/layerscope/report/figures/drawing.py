"""What every figure needs: an empty one, a file of it, quiet axes, a log scale with plain numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerscope.errors import MissingExtraError, UnknownNameError
from layerscope.store import atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """An empty figure that any format can be written from."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("drawing figures", "report") from None
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure; the suffix says the format (png, svg, pdf)."""
    target = Path(path)
    known = figure.canvas.get_supported_filetypes()
    kind = target.suffix.lower().removeprefix(".")
    if kind not in known:
        raise UnknownNameError("figure format", target.suffix or target.name, [f".{name}" for name in known])
    with atomic.explained(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target)
    return target


def logarithmic(axis: Any) -> None:
    """A log scale with plain numbers, between the decades only where there are few of them; no log scale for a short range."""
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


def quiet(axis: Any) -> None:
    """Small ticks, a faint grid, no frame."""
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.25, linewidth=0.5)
    axis.spines[["top", "right"]].set_visible(False)


def tame(text: str) -> str:
    """A name that matplotlib does not take for mathematics."""
    return text.replace("$", r"\$")
