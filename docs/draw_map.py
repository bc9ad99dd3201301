"""The map of the demo's questions on paper: `python docs/draw_map.py`.

It is drawn from docs/gallery/questions/map.safetensors: the map of a run of the demo, which
docs/gallery/questions.html shows. The report of `make demo` shows one like it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from layerscope.maps import read_map
from layerscope.report.charts import COLORS

SOURCE = Path(__file__).parent / "gallery" / "questions"
LAYERS = {"today": (0, 15, 30), "better": (5, 10, 28)}
COLUMN = "asks for"


def draw(into: Path) -> None:
    """Three layers of each reading, side by side, colored by what a question asks for (which the
    model was never told)."""
    given = read_map(SOURCE)
    assert given is not None
    values = given.columns[COLUMN]
    names = sorted(set(values), key=lambda name: (-values.count(name), name))
    figure = Figure(figsize=(9.6, 6.6), dpi=150, layout="constrained")
    axes = figure.subplots(len(LAYERS), 3)
    for row, reading in zip(axes, given.readings, strict=True):
        for axis, layer in zip(row, LAYERS[reading.name], strict=True):
            at = reading.layers.index(layer)
            for name, color in zip(names, COLORS, strict=False):
                some = reading.points[at][np.array([value == name for value in values])]
                axis.scatter(
                    some[:, 0], some[:, 1], s=13, color=color, linewidths=0, alpha=0.85, label=name
                )
            used = (
                ""
                if layer != reading.at
                else ", what is used today"
                if reading.name == "today"
                else ", chosen"
            )
            axis.set_title(
                f"{reading.name}: layer {layer}{used} (trust {reading.trust[at]:.2f})", fontsize=8
            )
            axis.set_xticks([])
            axis.set_yticks([])
            axis.spines[:].set_color("#d5d7db")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=6,
        frameon=False,
        fontsize=8,
        markerscale=1.6,
    )
    figure.savefig(into / "map.png", dpi=110)


if __name__ == "__main__":
    draw(Path(__file__).parent / "images")
