"""Accuracy against depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from layerscope.probing.run import ProbeRun
from layerscope.report.figures.drawing import new_figure, quiet, tame
from layerscope.report.figures.palette import COLOURS, line_style, styles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLES = {"top1": "top-1 accuracy", "top5": "top-5 accuracy"}


def plot_probes(
    runs: Sequence[ProbeRun], *, metric: str = "top1", x: str = "depth", labels: Sequence[str] | None = None
) -> Figure:
    """One panel per probe, one line per run with its 95 % band; a filled point at the best layer, rings at those tied with it."""
    probes = list(dict.fromkeys(probe for run in runs for probe in run.probes))
    columns = len(probes) if len(probes) < 4 else 2
    rows = -(-len(probes) // columns)
    figure = new_figure(3.4 * columns + 0.4 + 0.8 * (columns == 2), 2.7 * rows + 0.8)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()[: len(probes)]
    names = [run.name for run in runs] if labels is None else list(labels)
    looks = styles([(run.manifest["model"]["family"], name) for run, name in zip(runs, names, strict=True)])
    for axis, probe in zip(axes, probes, strict=True):
        for run, look, name in zip(runs, looks, names, strict=True):
            if probe in run.probes:
                _line(axis, run, probe, metric, x, COLOURS[look.colour], line_style(look.dash), name)
        axis.set_title(f"{probe} probe" if probe != "knn" else "nearest neighbours", fontsize=9, loc="left")
        axis.set_xlabel("depth (layer / blocks)" if x == "depth" else "layer", fontsize=8)
        quiet(axis)
    for axis in axes[::columns]:
        axis.set_ylabel(_TITLES[metric], fontsize=8)
    _crop(axes[0], runs, metric)
    handles, shown = axes[0].get_legend_handles_labels()
    figure.legend(handles, shown, loc="outside lower center", ncols=min(4, len(shown)), frameon=False, fontsize=8)
    figure.suptitle(tame(_title(runs)), fontsize=9)
    return figure


def _line(axis: Any, run: ProbeRun, probe: str, metric: str, x: str, colour: str, dash: Any, name: str) -> None:
    curve = run.curve(probe, metric)
    where = curve[x]
    axis.fill_between(where, curve["ci_low"], curve["ci_high"], color=colour, alpha=0.15, linewidth=0)
    axis.plot(where, curve["value"], color=colour, linestyle=dash, linewidth=1.6, label=tame(name))
    tied = curve[curve["tied_best"]]
    axis.plot(tied[x], tied["value"], "o", markersize=4, markerfacecolor="white", markeredgecolor=colour, markeredgewidth=1)
    best = int(curve["value"].argmax())
    axis.plot([where.iloc[best]], [curve["value"].iloc[best]], "o", markersize=5, color=colour)


def _crop(axis: Any, runs: Sequence[ProbeRun], metric: str) -> None:
    """Leave layer 0 out of the range where it is far below all others: a class token that has seen nothing yet is at chance."""
    held = pd.concat([run.table[run.table["metric"] == metric] for run in runs])
    low, high = held.loc[held["layer"] > 0, "ci_low"].min(), held["ci_high"].max()
    if held["ci_low"].min() < low - (high - low):
        axis.set_ylim(low - 0.1 * (high - low), high + 0.05 * (high - low))


def _title(runs: Sequence[ProbeRun]) -> str:
    facts = []
    for run in runs:
        counts, data = run.manifest["counts"], run.manifest["data"]["name"]
        norm = run.manifest["conventions"]["final_norm"]
        facts.append(f"{data}: {counts['train']} training and {counts['test']} test items, final_norm={norm}, 95 % bands")
    return "\n".join(dict.fromkeys(facts))
