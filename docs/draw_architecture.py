"""Draw docs/images/architecture.png (the folders of the core) and packages.png (the packages before
and after).

    python docs/draw_architecture.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

IMAGES = Path(__file__).parent / "images"
BLUE, GREEN, YELLOW, RED, VIOLET, GRAY = (
    "#dbe7f5", "#e3f1e4", "#fbf0d9", "#f6e3e3", "#ece6f3", "#eeeeee",
)  # fmt: skip

# from the top; each folder with what it does
LEVELS = [
    ("commands", BLUE, [("cli", "commands"), ("layerscope", "Python names")]),
    ("results", BLUE, [("report", "terminal, figures, page"), ("embedding", "embed, search, compare")]),
    ("improve", GREEN, [("improving", "language models"), ("blocks", "encoders")]),
    ("choose, export", GREEN, [("exporting", "a verified folder"), ("choose", "one decision: rules, labels, judges")]),
    ("runs", YELLOW, [("profiling", "metrics"), ("evaluation", "MTEB scores"), ("probing", "probes"), ("training", "while training")]),
    ("passes", YELLOW, [("command", "shared by commands"), ("vectors", "encode, vector store"), ("forward", "batches"), ("engines", "here, or Ray")]),
    ("model, texts", RED, [("models", "load, families"), ("capture", "hooks, reduction"), ("data", "texts, views")]),
    ("maths, disk", VIOLET, [("metrics", "seven and more"), ("spectra", "eigenvalues"), ("maps", "points"), ("store", "folders of runs")]),
    ("values", GRAY, [("core", "Readout, Pooling, Template, Site, Column, ModelIdentity, Registry")]),
]  # fmt: skip

BEFORE = {"layerscope": 1810, "layerscope-gpu": 204, "layerscope-zoo": 20}
AFTER = {
    "layerscope": 1045,
    "layerscope-paper": 420,
    "layerscope-gpu": 238,
    "layerscope-media": 70,
    "layerscope-zoo": 69,
}
"""Thousands of characters of code, comments and docstrings left out."""
USES = {
    "layerscope-paper": "the paper's studies",
    "layerscope-gpu": "CUDA kernels, scoring",
    "layerscope-media": "images, speech",
    "layerscope-zoo": "models without a hub",
}


def box(
    axes: Axes, left: float, bottom: float, width: float, height: float, color: str, text: str
) -> None:
    """Draw a box with a bold first line and a plain second one."""
    axes.add_patch(
        FancyBboxPatch(
            (left, bottom), width, height, boxstyle="round,pad=0.02", fc=color, ec="#777777", lw=0.8
        )
    )
    first, second = text.split("\n")
    middle, up = left + width / 2, bottom + height / 2
    center: dict[str, Any] = {"ha": "center", "va": "center"}
    axes.text(middle, up + 0.13, first, fontsize=11, weight="bold", color="#222222", **center)
    axes.text(middle, up - 0.15, second, fontsize=8, color="#444444", **center)


def draw_folders(into: Path) -> None:
    """Draw the folders of the core."""
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


def draw_packages(into: Path) -> None:
    """Draw the packages and their imports, before and after."""
    figure, (before, after) = plt.subplots(1, 2, figsize=(14, 4.2), dpi=140, width_ratios=(1, 1.9))
    for axes, title, end in ((before, "before", 6.4), (after, "after", 12.2)):
        axes.set_xlim(0, end)
        axes.set_ylim(0.2, 4)
        axes.set_title(title, loc="left", fontsize=12, color="#222222")
        axes.axis("off")
    whole = f"layerscope\n{BEFORE['layerscope']:,} k characters"
    box(before, 0.2, 0.4, 6, 1.2, BLUE, whole)
    for left, name in ((0.2, "layerscope-gpu"), (3.3, "layerscope-zoo")):
        box(before, left, 2.7, 2.9, 1.1, YELLOW, f"{name}\n{BEFORE[name]} k")
        _arrow(before, (left + 1.45, 1.65), (left + 1.45, 2.65))
    before.text(3.25, 2.15, "the core imports them", **_LABEL)
    box(after, 0.2, 0.4, 11.8, 1.2, BLUE, f"layerscope\n{AFTER['layerscope']:,} k characters")
    for i, (name, use) in enumerate(USES.items()):
        left = 0.2 + i * 2.98
        box(after, left, 2.7, 2.86, 1.1, YELLOW, f"{name}\n{AFTER[name]} k: {use}")
        _arrow(after, (left + 1.43, 2.65), (left + 1.43, 1.65))
    after.text(6.1, 2.15, "they import the core's public modules", **_LABEL)
    figure.tight_layout(w_pad=4)
    figure.savefig(into / "packages.png", bbox_inches="tight")
    plt.close(figure)


_LABEL: dict[str, Any] = {
    "ha": "center",
    "va": "center",
    "fontsize": 9,
    "color": "#444444",
    "backgroundcolor": "white",
}


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=14, color="#777777")
    )


def draw(into: Path = IMAGES) -> None:
    """Write both pictures."""
    draw_folders(into)
    draw_packages(into)


if __name__ == "__main__":
    draw()
