"""Scores by task and layer, and metrics against scores, for people and papers."""

from __future__ import annotations

from typing import Any

import numpy as np

from layerscope.report.contents.gather import Report
from layerscope.report.contents.sources import Scores
from layerscope.report.figures.curves import MARKERS, curve_of
from layerscope.report.figures.drawing import quiet, tame
from layerscope.report.figures.palette import COLOURS


def heat_height(score: Scores) -> float:
    """Inches that the map needs."""
    return 1.5 + 0.24 * len(score.tasks)


def draw_heat(figure: Any, score: Scores, readout: str) -> None:
    """Task by layer: colour is the gain over the last layer; a dot ties with the best, a frame is the best."""
    from matplotlib.patches import Rectangle

    axis = figure.subplots()
    rows = score.table[score.table["readout"] == readout]
    layers = sorted(set(rows["layer"]))
    tasks = [t for t in score.tasks if t in set(rows["task"])]
    gain = 100 * rows.pivot(index="task", columns="layer", values="gain").reindex(index=tasks, columns=layers).to_numpy(
        dtype=float
    )
    value = score.grid(readout).reindex(index=tasks, columns=layers).to_numpy(dtype=float)
    tied = rows.pivot(index="task", columns="layer", values="tied").reindex(index=tasks, columns=layers).to_numpy()
    most = max(1.0, float(np.nanmax(np.abs(gain))) if np.isfinite(gain).any() else 1.0)
    image = axis.imshow(gain, aspect="auto", cmap="PuOr_r", vmin=-most, vmax=most, interpolation="nearest")
    for j in range(len(tasks)):
        for i in range(len(layers)):
            if tied[j, i] is True or tied[j, i] == 1:
                axis.plot(i, j, marker="o", markersize=2.6, color="black")
        if np.isfinite(value[j]).any():
            best = int(np.nanargmax(value[j]))
            axis.add_patch(Rectangle((best - 0.5, j - 0.5), 1, 1, fill=False, linewidth=1.3, edgecolor="black"))
    axis.set_yticks(range(len(tasks)), [tame(t) for t in tasks], fontsize=7)
    step = max(1, len(layers) // 12)
    axis.set_xticks(range(0, len(layers), step), [str(k) for k in layers[::step]], fontsize=7)
    axis.set_xlabel("layer", fontsize=8)
    axis.set_title(tame(f"{score.label}, read as {readout}"), fontsize=9, loc="left")
    bar = figure.colorbar(image, ax=axis, shrink=0.8, pad=0.01)
    bar.set_label("gain over the last layer, points", fontsize=7)
    bar.ax.tick_params(labelsize=7)


def draw_readouts(figure: Any, score: Scores) -> None:
    """Mean score by layer, one line per readout."""
    axis = figure.subplots()
    for place, readout in enumerate(score.readouts):
        mean = 100 * score.mean(readout)
        colour, marker = COLOURS[place % len(COLOURS)], list(MARKERS.values())[place % len(MARKERS)]
        every = max(1, len(mean) // 8)
        axis.plot(
            mean.index,
            mean.to_numpy(),
            color=colour,
            marker=marker,
            markersize=4,
            markevery=every,
            linewidth=1.5,
            label=tame(readout),
        )
    axis.set_xlabel("layer", fontsize=8)
    axis.set_ylabel("main score × 100", fontsize=8)
    what = tame(score.tasks[0]) if len(score.tasks) == 1 else f"mean over {score.mean_says}"
    axis.set_title(f"{tame(score.label)}: {what}", fontsize=9, loc="left")
    axis.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    quiet(axis)


def draw_scatter(figure: Any, report: Report, place: int, most: int = 4) -> bool:
    """The metrics that go most with the mean score, a point per layer. Whether there is anything to draw."""
    held = report.correlations[place]
    score, curves = report.scores[held.scores], report.curves[held.curves]
    own = held.table[(held.table["readout"] == score.reference) & (held.table["task"] == held.table["task"].iloc[0])]
    own = own.dropna(subset=["rho"]).sort_values("rho", key=abs, ascending=False)[:most]
    if own.empty:
        return False
    axes = np.atleast_1d(figure.subplots(1, len(own), sharey=True))
    target = 100 * score.mean(score.reference)
    look = report.styles[held.curves]
    for axis, row in zip(axes, own.to_dict(orient="records"), strict=True):
        values = curve_of(curves, row["metric"], row["sink"]).drop_duplicates("layer").set_index("layer")["value"]
        x, y = values.align(target, join="inner")
        axis.plot(x, y, color=COLOURS[look.colour], linewidth=0.7, alpha=0.4)
        axis.scatter(x, y, c=np.arange(len(x)), cmap="cividis", s=18, marker=MARKERS[look.marker])
        for mark in report.marks:
            if mark.model == score.model and mark.layer in x.index:
                axis.scatter([x[mark.layer]], [y[mark.layer]], s=70, facecolors="none", edgecolors="black", linewidths=1.1)
        noise = f" (chance: {row['noise']:.2f})" if np.isfinite(row["noise"]) else ""
        name = row["metric"].replace("_", " ") + (", sink dropped" if row["sink"] == "drop" else "")
        axis.set_title(f"ρ = {row['rho']:+.2f}{noise}", fontsize=8, loc="left")
        axis.set_xlabel(name, fontsize=8)
        quiet(axis)
    axes[0].set_ylabel("score × 100", fontsize=8)
    figure.suptitle(tame(f"{curves.label}: metric against score, a point per layer (light: later)"), fontsize=9)
    return True
