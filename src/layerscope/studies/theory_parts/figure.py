"""The figure of the theorems."""

from __future__ import annotations

from typing import Any

import pandas as pd

from layerscope.report.figures.palette import COLOURS
from layerscope.studies.shared.drawing import band, new_figure, quiet


def draw(table: pd.DataFrame) -> Any:
    """Left: effective rank against entropy rank. Right: dataset entropy of Theorems 5 and 6, with and without the trace."""
    figure = new_figure(9.6, 4.0)
    left, right = figure.subplots(1, 2)
    _ranks(left, table[table["metric"] == "point"])
    _pooled(right, table[table["metric"] == "dataset_entropy"])
    return figure


def _ranks(axis: Any, points: pd.DataFrame) -> None:
    for colour, (kind, rows) in zip([*COLOURS, "grey"], points.groupby("kind", sort=False), strict=False):
        axis.scatter(rows["x"], rows["value"], s=8, color=colour, alpha=0.7, linewidths=0, label=kind)
    top = float(points["value"].max()) * 1.05
    axis.plot([1, top], [1, top], color="grey", linewidth=1)
    axis.fill_between([1, top], [1, top], [1, 1], color="grey", alpha=0.12, linewidth=0)
    axis.text(
        top * 0.97, 1 + 0.04 * top, "where Theorem 1 as printed\nputs every matrix", fontsize=7, ha="right", color="dimgrey"
    )
    axis.set_title("Theorem 1: effective rank is the larger one", fontsize=9, loc="left")
    axis.set_xlabel("entropy rank exp(S₁)", fontsize=8)
    axis.set_ylabel("effective rank", fontsize=8)
    axis.legend(fontsize=7, frameon=False, loc="upper left", markerscale=1.5)
    quiet(axis)


def _pooled(axis: Any, rows: pd.DataFrame) -> None:
    names = {"Theorem 5": "maximal prompt entropy (Th. 5)", "Theorem 6": "minimal prompt entropy (Th. 6)"}
    looks: dict[str, dict[str, Any]] = {"printed": {"linestyle": ":", "linewidth": 1.3}, "trace divided": {"linewidth": 1.6}}
    for colour, (theorem, label) in zip(COLOURS, names.items(), strict=False):
        for version, look in looks.items():
            held = rows[(rows["theorem"] == theorem) & (rows["version"] == version)]
            # the two solid curves lie on each other: one is drawn as marks on the other
            mark: dict[str, Any] = (
                {"marker": "o", "markersize": 4, "linestyle": "none"} if theorem == "Theorem 6" and version != "printed" else look
            )
            tail = ", as printed: no trace" if version == "printed" else ", trace divided out"
            band(axis, held, colour, x="x", label=label + tail, **mark)
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted(rows["x"].unique()), [f"{n:g}" for n in sorted(rows["x"].unique())])
    axis.axhline(0, color="grey", linewidth=0.8)
    axis.set_title("Theorems 5 and 6: the difference is the missing trace", fontsize=9, loc="left")
    axis.set_xlabel("prompts N (D = 16)", fontsize=8)
    axis.set_ylabel("dataset entropy S₂ (nats)", fontsize=8)
    axis.set_ylim(top=float(rows["value"].max()) + 4)  # room for the legend
    axis.legend(fontsize=7, frameon=False, loc="upper right")
    quiet(axis)
