"""The figure of α."""

from __future__ import annotations

from typing import Any

import pandas as pd

from layerscope.report.figures.palette import COLOURS
from layerscope.studies.shared.drawing import band, new_figure, quiet, sequential, tame


def draw(table: pd.DataFrame, manifest: dict[str, Any]) -> Any:
    """A column for the power laws and one per model; entropy above, the weight of the largest eigenvalues below."""
    names = list(dict.fromkeys(table["model"]))
    figure = new_figure(3.6 * len(names) + 0.6, 5.4)
    axes = figure.subplots(2, len(names), squeeze=False, sharex=True)
    top = manifest["options"]["top"]
    looks: dict[str, dict[str, Any]] = {"keep": {}, "drop": {"linestyle": (0, (1, 1.5)), "linewidth": 1.2}}
    for j, name in enumerate(names):
        rows = table[table["model"] == name]
        spectra = list(dict.fromkeys(rows["spectrum"]))
        colours = sequential(len(spectra)) if j == 0 else COLOURS
        for spectrum, colour in zip(spectra, colours, strict=False):
            for i, metric in enumerate(("entropy", "top_weight")):
                for sink, look in looks.items():
                    held = rows[(rows["spectrum"] == spectrum) & (rows["metric"] == metric) & (rows["sink"] == sink)]
                    if not held.empty:
                        band(axes[i, j], held, colour, x="alpha", label=spectrum if sink == "keep" else None, **look)
        axes[0, j].set_title(tame(name if j else "Power laws λᵢ = i^(−β)"), fontsize=9, loc="left")
        axes[0, j].legend(fontsize=7, frameon=False)
        axes[1, j].set_xlabel("α", fontsize=8)
        axes[1, j].set_ylim(0, 1.03)
        for i in range(2):
            axes[i, j].set_xscale("log")
            axes[i, j].axvline(1, color="grey", linewidth=0.6, alpha=0.6)
            quiet(axes[i, j])
    axes[0, 0].set_ylabel("entropy S_α (nats)", fontsize=8)
    axes[1, 0].set_ylabel(f"weight of the largest {100 * top:.0f} %\nof the eigenvalues", fontsize=8)
    if len(names) > 1:
        figure.suptitle("dotted: sink token dropped; bands: 95 %", fontsize=8, x=0.99, ha="right")
    return figure
