"""Curves of the metrics against depth, for people and papers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from layerscope.errors import LayerscopeError, MissingExtraError, UnknownNameError
from layerscope.metrics import get_metric
from layerscope.profiling.valley import find_valley
from layerscope.store import atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from layerscope.profiling.run import Run

# Okabe & Ito 2008: told apart by people with any colour vision
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
CORE = ["prompt_entropy", "curvature", "dataset_entropy", "effective_rank", "infonce", "lidar", "dime", "sink_ratio"]


def plot_profiles(runs: Sequence[Run], metrics: Sequence[str] | None = None, *, x: str = "depth", columns: int = 4) -> Figure:
    """One panel per metric, one line per run with its 95 % band; dashed: the sink token dropped. `x` is depth or layer."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("drawing figures", "report") from None
    if x not in ("depth", "layer"):
        raise UnknownNameError("x axis", x, ["depth", "layer"])
    held = list(dict.fromkeys(m for run in runs for m in run.table["metric"]))
    names = list(metrics) if metrics else [m for m in CORE if m in held] or held
    if not held:
        raise LayerscopeError("there are no runs with metrics to draw.")
    for name in names:
        get_metric(name)  # an unknown name gets its own error
        if name not in held:
            raise UnknownNameError("metric in these runs", name, held)
    columns = min(columns, len(names))
    lines = math.ceil(len(names) / columns)
    figure = Figure(figsize=(3.6 * columns, 2.7 * lines + 1.0), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = np.atleast_1d(figure.subplots(lines, columns, squeeze=False)).ravel()
    for axis, name in zip(axes, names, strict=False):
        _panel(axis, runs, name, x)
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    handles = _legend(axes[0], runs)
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False, fontsize=8)
    figure.suptitle(_title(runs, names), fontsize=9)
    return figure


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure; the suffix says the format (png, svg, pdf)."""
    target = Path(path)
    known = figure.canvas.get_supported_filetypes()
    if target.suffix.lower().removeprefix(".") not in known:
        raise UnknownNameError("figure format", target.suffix or target.name, [f".{kind}" for kind in known])
    with atomic.explained(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target)
    return target


def _panel(axis: Any, runs: Sequence[Run], name: str, x: str) -> None:
    info = get_metric(name).info
    for colour, run in zip(_cycle(len(runs)), runs, strict=True):
        if name not in set(run.table["metric"]):
            continue
        for sink in info.sinks:
            curve = run.curve(name, sink=sink)
            curve = curve[~curve["site"].str.match(r"block\.\d+\.")] if curve["site"].str.match(r"block\.\d+$").any() else curve
            style = {"linestyle": "-", "linewidth": 1.6} if sink == "keep" else {"linestyle": (0, (3, 2)), "linewidth": 1.2}
            axis.plot(curve[x], curve["value"], color=colour, **style)
            if sink == "keep":
                axis.fill_between(curve[x], curve["ci_low"], curve["ci_high"], color=colour, alpha=0.18, linewidth=0)
        valley = find_valley(run.table) if name == "prompt_entropy" else None
        if valley is not None:
            where = valley.layer / run.manifest["model"]["n_blocks"] if x == "depth" else valley.layer
            axis.annotate(
                f"layer {valley.layer}" + (": the sink" if valley.is_sink else ""),
                (where, valley.value),
                xytext=(6, -2),
                textcoords="offset points",
                fontsize=7,
                color=colour,
                va="top",
            )
    if name == "sink_ratio":
        axis.set_yscale("log")
    axis.set_title(info.title, fontsize=9, loc="left")
    axis.set_ylabel(info.unit, fontsize=8)
    axis.set_xlabel("depth (layer / blocks)" if x == "depth" else "layer", fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.25, linewidth=0.5)
    axis.spines[["top", "right"]].set_visible(False)


def _cycle(n: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(n)]


def _legend(axis: Any, runs: Sequence[Run]) -> list[Any]:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, label=_label(run)) for colour, run in zip(_cycle(len(runs)), runs, strict=True)]
    return [*handles, Line2D([], [], color="grey", linestyle=(0, (3, 2)), label="sink token dropped")]


def _label(run: Run) -> str:
    name = run.name.replace("$", r"\$")
    return f"{name} ({run.manifest['model']['n_blocks']} blocks), final_norm={run.manifest['conventions']['final_norm']}"


def _title(runs: Sequence[Run], names: Sequence[str]) -> str:
    views = any(get_metric(name).info.level == "views" for name in names)
    facts = []
    for run in runs:
        c = run.manifest["conventions"]
        parts = [
            f"{run.manifest['counts']['prompts']} prompts of {run.manifest['corpus']['name']}",
            f"up to {c['max_length']} tokens",
            f"α = {c['metrics']['alpha']}",
            f"rows {c['metrics']['rows']}",
            *([f"{c['views']} views"] if views else []),
            "95 % bands",
        ]
        facts.append(", ".join(parts).replace("$", r"\$"))
    return "\n".join(dict.fromkeys(facts))
