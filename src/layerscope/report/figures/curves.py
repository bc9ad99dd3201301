"""Curves of the metrics against depth, for people and papers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from layerscope.core.sites import whole_layers
from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.metrics import get_metric, metrics
from layerscope.report.contents.sources import Curves, from_run
from layerscope.report.figures.drawing import logarithmic, new_figure, quiet, tame
from layerscope.report.figures.palette import COLOURS, Style, line_style, styles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from layerscope.profiling.run import Run

CORE = ["prompt_entropy", "curvature", "dataset_entropy", "effective_rank", "infonce", "lidar", "dime", "sink_ratio"]
_DROPPED = (0, (1, 1.5))
MARKERS = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D", "cross": "x"}


def plot_profiles(
    runs: Sequence[Run | Curves], metrics: Sequence[str] | None = None, *, x: str = "depth", columns: int = 4
) -> Figure:
    """One panel per metric, one line per run with its 95 % band; dotted: the sink token dropped. `x` is depth or layer."""
    curves = [run if isinstance(run, Curves) else from_run(run) for run in runs]
    names = _names(curves, metrics, x)
    columns = min(columns, len(names))
    figure = new_figure(3.6 * columns, profile_height(len(names), columns))
    draw_profiles(figure, curves, names, x=x, columns=columns)
    return figure


def profile_height(panels: int, columns: int) -> float:
    """Inches that so many panels need."""
    return 2.7 * math.ceil(panels / columns) + 1.0


def draw_profiles(figure: Any, curves: Sequence[Curves], names: Sequence[str], *, x: str = "depth", columns: int = 4) -> None:
    """Draw the panels into a figure or a part of one."""
    axes = np.atleast_1d(figure.subplots(math.ceil(len(names) / columns), columns, squeeze=False)).ravel()
    looks = styles([(run.family, run.model) for run in curves])
    for axis, name in zip(axes, names, strict=False):
        _panel(axis, curves, looks, name, x)
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    handles = _legend(curves, looks)
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False, fontsize=8)
    figure.suptitle(_title(curves, names), fontsize=9)


def main_metrics(curves: Sequence[Curves]) -> list[str]:
    """What is drawn when nothing is asked for."""
    held = list(dict.fromkeys(m for run in curves for m in run.table["metric"]))
    return [m for m in CORE if m in held] or held


def _names(curves: Sequence[Curves], wanted: Sequence[str] | None, x: str) -> list[str]:
    if x not in ("depth", "layer"):
        raise UnknownNameError("x axis", x, ["depth", "layer"])
    held = list(dict.fromkeys(m for run in curves for m in run.table["metric"]))
    if not held:
        raise LayerscopeError("there are no runs with metrics to draw.")
    names = list(wanted) if wanted else main_metrics(curves)
    for name in names:
        if name not in held:
            get_metric(name)  # an unknown name gets its own error
            raise UnknownNameError("metric in these runs", name, held)
    return names


def curve_of(run: Curves, metric: str, sink: str) -> pd.DataFrame:
    """One metric over the layers (over the sites inside the blocks where a run has only those)."""
    table = run.table
    rows = table[(table["metric"] == metric) & (table["normalization"] == "raw") & (table["sink"] == sink)]
    layers = whole_layers(rows)
    return layers if (layers["site"] != "embed").any() else rows


def _panel(axis: Any, runs: Sequence[Curves], looks: Sequence[Style], name: str, x: str) -> None:
    for look, run in zip(looks, runs, strict=True):
        colour = COLOURS[look.colour]
        for sink in ("keep", "drop"):
            curve = curve_of(run, name, sink)
            if curve.empty:
                continue
            dash = line_style(look.dash) if sink == "keep" else _DROPPED
            axis.plot(curve[x], curve["value"], color=colour, linestyle=dash, linewidth=1.6 if sink == "keep" else 1.2)
            if sink == "keep":
                axis.fill_between(curve[x], curve["ci_low"], curve["ci_high"], color=colour, alpha=0.18, linewidth=0)
        valley = run.valley if name == "prompt_entropy" else None
        if valley is not None:
            axis.annotate(
                f"layer {valley.layer}" + (": the sink" if valley.is_sink else ""),
                (valley.layer / run.n_blocks if x == "depth" else valley.layer, valley.value),
                xytext=(-6, 1),
                ha="right",
                textcoords="offset points",
                fontsize=7,
                color=colour,
                va="bottom",
            )
    if name == "sink_ratio":
        logarithmic(axis)
    known = metrics().get(name)
    axis.set_title(known.info.title if known else name.replace("_", " "), fontsize=9, loc="left")
    axis.set_ylabel(known.info.unit if known else "", fontsize=8)
    axis.set_xlabel("depth (layer / blocks)" if x == "depth" else "layer", fontsize=8)
    quiet(axis)


def _legend(runs: Sequence[Curves], looks: Sequence[Style]) -> list[Any]:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=COLOURS[look.colour], linestyle=line_style(look.dash), label=_label(run))
        for look, run in zip(looks, runs, strict=True)
    ]
    if any((run.table["sink"] == "drop").any() for run in runs):
        handles.append(Line2D([], [], color="grey", linestyle=_DROPPED, label="sink token dropped"))
    return handles


def _label(run: Curves) -> str:
    return f"{tame(run.label or run.model)} ({run.n_blocks} blocks), final_norm={run.final_norm}"


def _title(runs: Sequence[Curves], names: Sequence[str]) -> str:
    known = metrics()
    views = any(name in known and known[name].info.level == "views" for name in names)
    facts = []
    for run in runs:
        f = run.facts
        parts = [str(f["texts"])]
        parts += [f"up to {f['longest text']}"] if "longest text" in f else []
        parts += [f"α = {f['α']}", f"rows {f['rows']}"] + ([f"views {f['views']}"] if views and "views" in f else [])
        parts += ["95 % bands"] if run.table["ci_low"].notna().any() else []
        facts.append(tame(", ".join(parts)))
    return "\n".join(dict.fromkeys(facts))
