"""Draw docs/images/study-penalties.png from packages/layerscope-paper/results/interventions.

python packages/layerscope-paper/docs/draw_penalties.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from layerscope_paper.drawing import COLORS, new_figure, style_axis

HERE = Path(__file__).parent
RESULTS = HERE.parents[2] / "packages/layerscope-paper/results/interventions"
COLOR = {
    "none": "#000000",
    "compress": COLORS[0],
    "compress-strong": COLORS[0],
    "spread": COLORS[1],
    "spread-strong": COLORS[1],
    "decorrelate": COLORS[2],
}
DASHED = ("compress-strong", "spread-strong")
PROBES = ("TrecQuestions", "SmsSpam", "SentimentSnippets")
TITLES = {"ar": "autoregressive", "mlm": "masked-language"}


def draw(into: Path = HERE / "images", folder: Path = RESULTS) -> None:
    """One row per objective: entropy, probes and being found again, over layers."""
    layers = pd.read_csv(folder / "layers.csv")
    probes = layers[layers["quantity"].isin(PROBES)]
    probes = probes.groupby(["objective", "arm", "seed", "layer"], as_index=False)["value"].mean()
    similarity = layers[layers["quantity"] == "LeeSimilarity"]
    panels = {
        "Prompt entropy, nats": layers[layers["quantity"] == "entropy_keep"],
        "Linear probes, mean of 3 tasks, %": probes.assign(value=100 * probes["value"]),
        "Similarity (Lee), Spearman × 100": similarity.assign(value=100 * similarity["value"]),
    }
    arms = [arm for arm in COLOR if arm in set(layers["arm"])]
    figure = new_figure(11.0, 6.0)
    axes = figure.subplots(2, len(panels), sharex=True)
    for i, (objective, title) in enumerate(TITLES.items()):
        for j, (name, table) in enumerate(panels.items()):
            axis = axes[i, j]
            axis.axvspan(3.5, 8.5, color="#eeeeee", zorder=0)
            for arm in arms:
                rows = table[(table["objective"] == objective) & (table["arm"] == arm)]
                wide = rows.pivot(index="seed", columns="layer", values="value")
                if not len(wide):
                    continue
                x = np.asarray(wide.columns)
                style = "--" if arm in DASHED else "-"
                axis.plot(
                    x, wide.mean(), color=COLOR[arm], linestyle=style, linewidth=1.4, label=arm
                )
                axis.fill_between(
                    x, wide.min(), wide.max(), color=COLOR[arm], alpha=0.12, linewidth=0
                )
            axis.set_title(f"{name}" if i == 0 else "", fontsize=9, loc="left")
            style_axis(axis)
        axes[i, 0].set_ylabel(title, fontsize=9)
    for axis in axes[1]:
        axis.set_xlabel("layer", fontsize=8)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8
    )
    seeds = layers["seed"].nunique()
    figure.suptitle(
        f"Mean of {seeds} seeds, bands from lowest to highest; "
        "the penalty acts on the shaded layers",
        fontsize=9,
    )
    figure.savefig(into / "study-penalties.png", dpi=130)


if __name__ == "__main__":
    draw(folder=Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS)
