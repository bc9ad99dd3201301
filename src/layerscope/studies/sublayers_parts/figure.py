"""The figure of the steps inside blocks."""

from __future__ import annotations

from typing import Any

import pandas as pd

from layerscope.report.figures.palette import COLOURS
from layerscope.studies.shared.drawing import band, new_figure, quiet, subtitle, tame

_LOOKS = {
    "output": ("block output (stream)", "#000000", "-"),
    "mid": ("stream between the sums (mid)", "#777777", "-"),
    "norm1": ("normed for attention", COLOURS[4], (0, (4, 2))),
    "attn": ("attention, as added", COLOURS[0], "-"),
    "norm2": ("normed for MLP", COLOURS[5], (0, (4, 2))),
    "mlp": ("MLP, as added", COLOURS[1], "-"),
}
_METRICS = {"prompt_entropy": "prompt entropy (nats)", "prompt_effective_rank": "effective rank of a prompt's tokens"}
_SINKS = {"keep": "all tokens", "drop": "without the sink token"}


def draw(table: pd.DataFrame, manifest: dict[str, Any]) -> Any:
    """Columns: with and without the sink; rows: entropy, effective rank; a line per kind of state."""
    states = table[table["kind"] == "state"]
    single = manifest["conventions"].get("residual") == "single"
    figure = new_figure(9.6, 6.2)
    axes = figure.subplots(2, 2, sharex=True, sharey="row")
    handles: dict[str, Any] = {}
    for i, (metric, unit) in enumerate(_METRICS.items()):
        for j, (sink, title) in enumerate(_SINKS.items()):
            axis = axes[i, j]
            held = states[(states["metric"] == metric) & (states["sink"] == sink)]
            for part, (label, colour, dash) in _LOOKS.items():
                rows = held[held["part"].isin([part, "embed"])] if part == "output" else held[held["part"] == part]
                if not (rows["part"] == part).any():
                    continue
                name = label.replace("attention", "mixer") if single else label
                band(axis, rows, colour, alpha=0.10, linestyle=dash, linewidth=2.0 if part == "output" else 1.3)
                handles[name] = axis.lines[-1]
            quiet(axis)
            if i == 0:
                axis.set_title(title, fontsize=9, loc="left")
            if j == 0:
                axis.set_ylabel(unit, fontsize=8)
            if i == 1:
                axis.set_xlabel("depth (block / blocks)", fontsize=8)
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.suptitle(tame(f"{table['model'].iloc[0]}: {subtitle(manifest)}"), fontsize=9)
    return figure
