"""Draw docs/images/architecture.png, the folders of the core: `python docs/draw_architecture.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

IMAGES = Path(__file__).parent / "images"
BLUE = "#dbe7f5"
GREEN = "#e3f1e4"
YELLOW = "#fbf0d9"
RED = "#f6e3e3"
VIOLET = "#ece6f3"
GRAY = "#eeeeee"

LEVELS = [
    ("commands", BLUE, [("cli", "commands"), ("layerscope", "Python names")]),
    ("results", BLUE, [("report", "terminal, figures, page"), ("embedding", "embed, search, compare")]),
    ("improve", GREEN, [("improving", "language models"), ("blocks", "encoders")]),
    ("choose, export", GREEN, [("exporting", "a verified folder"), ("choose", "one decision: rules, labels, judges")]),
    ("runs", YELLOW, [("profiling", "metrics"), ("evaluation", "MTEB scores"), ("probing", "probes"), ("training", "while training")]),
    ("passes", YELLOW, [("command", "shared by commands"), ("vectors", "encode, vector store"), ("forward", "batches"), ("engines", "here, or Ray")]),
    ("model, texts", RED, [("models", "load, families"), ("capture", "hooks, reduction"), ("data", "texts, views")]),
    ("maths, disk", VIOLET, [("metrics", "seventeen"), ("spectra", "eigenvalues"), ("maps", "points"), ("store", "folders of runs")]),
    ("values", GRAY, [("core", "Readout, Pooling, Template, Site, Column, ModelIdentity, Registry")]),
]  # fmt: skip
"""The floors from the top: title, color, and each folder with its use."""


def box(
    axes: Axes, left: float, bottom: float, width: float, height: float, color: str, text: str
) -> None:
    """Draw a box with a bold first line and a plain second one."""
    axes.add_patch(
        FancyBboxPatch(
            (left, bottom), width, height, boxstyle="round,pad=0.02", fc=color, ec="#777777", lw=0.8
        )
    )
    name, use = text.split("\n")
    x = left + width / 2
    y = bottom + height / 2
    center: dict[str, Any] = {"ha": "center", "va": "center"}
    axes.text(x, y + 0.13, name, fontsize=11, weight="bold", color="#222222", **center)
    axes.text(x, y - 0.15, use, fontsize=8, color="#444444", **center)


def draw(into: Path = IMAGES) -> None:
    """Draw the folders of the core, each above those that it imports."""
    height = len(LEVELS)
    figure, axes = plt.subplots(figsize=(11, 0.86 * height + 0.3), dpi=140)
    axes.set_xlim(0, 12.2)
    axes.set_ylim(-0.05, height + 0.05)
    axes.axis("off")
    for level, (title, color, folders) in enumerate(LEVELS):
        bottom = height - 1 - level
        axes.text(0.05, bottom + 0.46, title, fontsize=10, va="center", color="#444444")
        width = 9.6 / len(folders)
        for i, (name, use) in enumerate(folders):
            box(axes, 1.8 + i * width, bottom + 0.1, width - 0.15, 0.72, color, f"{name}\n{use}")
    arrow = FancyArrowPatch(
        (11.65, height - 0.2), (11.65, 0.1), arrowstyle="-|>", mutation_scale=16, color="#777777"
    )
    axes.add_patch(arrow)
    axes.text(
        11.9, height / 2, "imports", rotation=270, va="center", fontsize=10, color="#444444"
    )  # fmt: skip
    figure.savefig(into / "architecture.png", bbox_inches="tight")
    plt.close(figure)


if __name__ == "__main__":
    draw()
