"""The controlled set over training in one figure: prompt entropy with and without the sink token,
and the sink itself.

layerscope-paper study checkpoints build/controlled/ar --out runs/ar      # and mlm, mamba
python examples/draw_controlled_set.py runs/ar runs/mlm runs/mamba --out objective.png
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd

from layerscope.report.drawing import color_key, new_figure, ordered_colors, style_axis
from layerscope_paper.studies.shared.figures import draw_band

TITLES = {"ar": "autoregressive", "mlm": "masked-language, the same blocks", "mamba": "Mamba"}
PANELS = (
    ("prompt_entropy", "prompt entropy (nats)"),
    ("sink_ratio", "largest token norm / median"),
)


def draw(tables: dict[str, pd.DataFrame]) -> Any:
    """A column per model, a color per step; dashed: without the sink token."""
    figure = new_figure(3.1 * len(tables) + 0.8, 5.4)
    axes = figure.subplots(len(PANELS), len(tables), squeeze=False, sharey="row", sharex=True)
    steps = sorted({int(step) for table in tables.values() for step in table["step"]})
    colors = dict(zip(steps, ordered_colors(len(steps)), strict=True))
    for column, (name, table) in enumerate(tables.items()):
        for row, (metric, label) in enumerate(PANELS):
            axis = axes[row, column]
            held = table[(table["metric"] == metric) & (table["normalization"] == "raw")]
            for (step, sink), rows in held.groupby(["step", "sink"]):
                draw_band(
                    axis, rows, colors[int(step)], linestyle="-" if sink == "keep" else (0, (2, 2))
                )
            style_axis(axis)
            if column == 0:
                axis.set_ylabel(label, fontsize=8)
        axes[0, column].set_title(TITLES.get(name, name), fontsize=9, loc="left")
        axes[-1, column].set_xlabel("depth (layer / blocks)", fontsize=8)
    color_key(figure, list(axes.ravel()), steps, "step")
    return figure


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs",
        type=Path,
        nargs="+",
        help="folders of `layerscope-paper study checkpoints`, one per model",
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    tables = {
        run.name.removeprefix("ck-"): pd.read_parquet(run / "study.parquet") for run in args.runs
    }
    draw(tables).savefig(args.out, dpi=110)


if __name__ == "__main__":
    main()
