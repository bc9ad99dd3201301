"""Draws docs/images/architecture.png: the rooms of the house, floor by floor, and the way of the
data.

python docs/draw_architecture.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

IMAGES = Path(__file__).parent / "images"

# floor by floor from the top; each room with what it is for
FLOORS = [
    ("What people use", "#dbe7f5", [("cli", "the commands"), ("layerscope", "the Python names"), ("sweeps", "plans of many runs")]),
    ("What people see", "#dbe7f5", [("studies", "the paper's experiments"), ("report", "terminal, figures, page")]),
    ("What comes of it", "#e3f1e4", [("improving", "one command"), ("exporting", "verified folder"), ("selection", "the one chooser, judges")]),
    ("What is compared", "#e3f1e4", [("atlas", "published results"), ("correlation", "metrics against scores")]),
    ("Runs", "#fbf0d9", [("profiling", "metrics per layer"), ("evaluation", "MTEB per layer"), ("probing", "probes per layer"), ("training", "watch")]),
    ("One way", "#fbf0d9", [("command", "what all commands share"), ("forward", "batch → capture → reduce"), ("engines", "here, or a Ray cluster")]),
    ("Models and items", "#f6e3e3", [("models", "load, families"), ("capture", "hooks, reduction"), ("data", "texts, images, views")]),
    ("Maths and disk", "#ece6f3", [("metrics", "pure functions"), ("spectra", "eigenvalues"), ("maps", "points, neighbors"), ("store", "run folders, embeddings"), ("catalogue", "fetch, verify")]),
    ("Ground", "#eeeeee", [("core", "Readout, Pooling, Template, Column, ModelIdentity, ScoredCandidates, statistics, registries")]),
]  # fmt: skip


def draw(into: Path = IMAGES) -> None:
    """Write the picture."""
    height = len(FLOORS)
    figure, axes = plt.subplots(figsize=(11, 0.92 * height + 0.4), dpi=150)
    axes.set_xlim(0, 12.2)
    axes.set_ylim(-0.1, height + 0.1)
    axes.axis("off")
    for level, (title, color, rooms) in enumerate(FLOORS):
        bottom = height - 1 - level
        axes.text(0.05, bottom + 0.45, title, fontsize=10, va="center", color="#444444")
        width = 9.2 / len(rooms)
        for i, (name, says) in enumerate(rooms):
            left = 2.1 + i * width
            box = FancyBboxPatch(
                (left, bottom + 0.1),
                width - 0.15,
                0.72,
                boxstyle="round,pad=0.02",
                fc=color,
                ec="#777777",
                lw=0.8,
            )
            axes.add_patch(box)
            middle = left + (width - 0.15) / 2
            axes.text(
                middle,
                bottom + 0.57,
                name,
                ha="center",
                va="center",
                fontsize=11,
                weight="bold",
                color="#222222",
            )
            axes.text(
                middle, bottom + 0.3, says, ha="center", va="center", fontsize=8, color="#444444"
            )
    axes.add_patch(
        FancyArrowPatch(
            (11.65, height - 0.2),
            (11.65, 0.1),
            arrowstyle="-|>",
            mutation_scale=16,
            color="#777777",
        )
    )
    axes.text(
        11.9,
        height / 2,
        "imports run down only",
        rotation=270,
        va="center",
        ha="center",
        fontsize=10,
        color="#555555",
    )
    figure.savefig(into / "architecture.png", bbox_inches="tight", facecolor="white")


if __name__ == "__main__":
    draw()
