"""Draw docs/images/layers.png and choice.png from recorded runs: `python docs/draw_layers.py`.

layers.png: metrics of SmolLM2-135M on 300 sentences of STSBenchmark, by layer, above the scores of
three readouts on that task. choice.png: every candidate of `improve` on the task, by the judge's
score, which `improve` knows, and by the score with labels, which it does not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TASK = "STSBenchmark"
BLUE, ORANGE, GRAY, GREEN = "#1f6feb", "#d97706", "#9aa0a6", "#2f9e5b"
METRICS = {
    "prompt_entropy": "Prompt entropy (nats)",
    "effective_rank": "Effective rank",
    "sink_ratio": "Sink ratio (largest norm / median)",
}
READOUTS = {
    "plain/mean/applied/keep/none": ("plain text, mean of tokens", GRAY),
    "plain/mean/raw/keep/corpus": ("the same, raw and centered", BLUE),
    "one-word/last/raw/keep/corpus": ("one-word prompt, last token, centered", ORANGE),
}
OFFERED = ("plain", "one-word", "step-by-step")


def draw(into: Path = ROOT / "docs" / "images") -> list[Path]:
    """Draw both pictures and return their paths."""
    return [draw_layers(into / "layers.png"), draw_choice(into / "choice.png")]


def read_record() -> dict[str, np.ndarray]:
    """Return the recorded scores of all candidates on the task."""
    arrays = np.load(RESULTS / "choices" / "smollm2-135m.npz", allow_pickle=False)
    names = [name for name in arrays if name.startswith(f"{TASK}/")]
    return {name.split("/", 1)[1]: arrays[name] for name in names}


def draw_layers(path: Path) -> Path:
    """Draw metrics and scores by layer."""
    table = pd.read_csv(RESULTS / "layers-smollm2.csv")
    figure, panels = plt.subplots(1, 4, figsize=(13, 3.3), layout="constrained")
    for panel, (metric, title) in zip(panels, METRICS.items(), strict=False):
        rows = table[table["metric"] == metric]
        for sink, color, words in (
            ("keep", BLUE, "all tokens"),
            ("drop", ORANGE, "without the sink token"),
        ):
            curve = rows[rows["sink"] == sink]
            if len(curve):
                panel.plot(curve["layer"], curve["value"], color=color, label=words)
                panel.fill_between(
                    curve["layer"], curve["ci_low"], curve["ci_high"], color=color, alpha=0.2, lw=0
                )
        panel.set_title(title, loc="left", fontsize=10)
        if metric == "prompt_entropy":
            panel.legend(frameon=False, fontsize=8, loc="center right")
    panels[2].set_yscale("log")
    record = read_record()
    layers, readouts = record["layers"], list(record["readouts"])
    for name, (words, color) in READOUTS.items():
        first = readouts.index(name) * len(layers)
        panels[3].plot(
            layers, record["full"][first : first + len(layers)], color=color, label=words
        )
    panels[3].set_title("Score on STSBenchmark", loc="left", fontsize=10)
    panels[3].set_ylim(top=105)
    panels[3].legend(frameon=False, fontsize=8, loc="upper left")
    for panel in panels:
        panel.set_xlabel("layer")
        finish(panel)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def draw_choice(path: Path) -> Path:
    """Draw every candidate by the judge's score and by the score with labels."""
    record = read_record()
    layers = record["layers"]
    templates = np.array([name.rsplit("/", 4)[0] for name in record["readouts"]])
    template = np.repeat(templates, len(layers))
    agreement, score = record["encoder"], record["full"]
    is_offered = np.isin(template, OFFERED) & np.isfinite(agreement) & np.isfinite(score)
    figure, panel = plt.subplots(figsize=(7.6, 4.2), layout="constrained")
    for name, color in zip(OFFERED, (BLUE, ORANGE, GREEN), strict=True):
        is_shown = is_offered & (template == name)
        panel.scatter(
            agreement[is_shown], score[is_shown], s=12, color=color, alpha=0.5, lw=0, label=name
        )
    baseline = len(layers) - 1
    chosen = int(np.nanargmax(np.where(is_offered, agreement, np.nan)))
    mark(
        panel,
        agreement[baseline],
        score[baseline],
        "baseline: last layer, mean of tokens",
        (12, -4),
    )
    mark(panel, agreement[chosen], score[chosen], "chosen by agreement", (-12, 10))
    panel.set_xlabel("agreement with MiniLM about neighbors, on unlabeled texts")
    panel.set_ylabel("score on STSBenchmark, by labels\nthat the choice never saw")
    panel.legend(title="template", frameon=False, fontsize=9, loc="lower right")
    finish(panel)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def mark(panel: Any, x: float, y: float, words: str, offset: tuple[int, int]) -> None:
    """Mark a candidate and write a few words beside it."""
    panel.scatter([x], [y], s=90, facecolors="none", edgecolors="black", lw=1.4, zorder=3)
    side = "left" if offset[0] > 0 else "right"
    panel.annotate(
        f"{words}: {y:.1f}", (x, y), offset, textcoords="offset points", ha=side, fontsize=9
    )


def finish(panel: Any) -> None:
    """Draw a light grid and no frame."""
    panel.grid(color="#eeeeee")
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.margins(x=0.03)


if __name__ == "__main__":
    print(*draw())
