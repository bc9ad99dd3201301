"""Draw docs/images/improve.png, and improve-phone.png, from benchmarks/results/improve.csv: `python
docs/draw_improve.py`."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
OTHERS = (
    "LeeSimilarity",
    "SentimentSnippets",
    "SmsSpam",
    "TrecQuestions",
    "FreeSolvSmiles",
    "SolubilitySmiles",
)
NAMES = {"smollm2-135m": "SmolLM2-135M-Instruct", "gemma3-270m": "Gemma 3 270M"}
# the columns that are drawn where the table has them, the last one as the choice: its color and its
# words
SHOWN = {
    "today": ("#9aa0a6", "today (last layer, mean)"),
    "one pass": ("#8fb8f6", "the best prompt, chosen without labels"),
    "head": ("#1f6feb", "improve, with a head"),
}
SHORT = {"Classification": "", "Clustering": "", "_reranking": "", "2015": ""}


def draw(into: Path = ROOT / "docs/images") -> list[Path]:
    """The picture, and a narrow one for phones."""
    return [_drawn(into / "improve.png", wide=True), _drawn(into / "improve-phone.png", wide=False)]


def _drawn(path: Path, wide: bool) -> Path:
    """One panel per model, one row per task: today, the choice without labels, and the best that
    labels know of."""
    table = pd.read_csv(ROOT / "benchmarks/results/improve.csv")
    table = table[~table["task"].isin(OTHERS)]
    shown = [column for column in SHOWN if column in table]
    choice = shown[-1]
    order = (
        table[table["model"] == "smollm2-135m"]
        .assign(gain=lambda t: t[choice] - t["today"])
        .sort_values("gain")["task"]
    )
    shape, size = ((1, 2), (11, 5.2)) if wide else ((2, 1), (4.6, 8.8))
    figure, panels = plt.subplots(
        *shape, figsize=size, sharey=True, sharex=not wide, layout="constrained"
    )
    for panel, (model, name) in zip(panels, NAMES.items(), strict=True):
        rows = table[table["model"] == model].set_index("task").loc[order]
        for y, (_, row) in enumerate(rows.iterrows()):
            panel.plot(
                [row["today"], row[choice]],
                [y, y],
                color="#c9d8f5",
                lw=5,
                solid_capstyle="round",
                zorder=1,
            )
            panel.plot([row["best"]] * 2, [y - 0.3, y + 0.3], color="#d97706", lw=1.6, zorder=2)
        for column in shown:
            color, words = SHOWN[column]
            panel.scatter(rows[column], range(len(rows)), color=color, s=34, zorder=3, label=words)
        mean = rows[shown].mean()
        title = f"{name}: mean {mean['today']:.1f} → {mean[choice]:.1f}"
        panel.set_title(title, loc="left", fontsize=11 if wide else 9, weight="bold")
        panel.set_yticks(range(len(rows)), [_short(task) for task in rows.index])
        if wide or panel is panels[-1]:
            panel.set_xlabel("score by labels that the choice never saw")
        panel.grid(axis="x", color="#eeeeee")
        panel.set_axisbelow(True)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(axis="y", length=0)
    marks, named = panels[0].get_legend_handles_labels()
    best = plt.Line2D([], [], color="#d97706", lw=1.6)
    labels = [*named, "best of the readouts, known to labels alone"]
    figure.legend(
        [*marks, best], labels, loc="outside lower center", ncols=4 if wide else 1, frameon=False
    )
    figure.savefig(path, dpi=130)
    return path


def _short(task: str) -> str:
    for long, short in SHORT.items():
        task = task.replace(long, short)
    return task


if __name__ == "__main__":
    print(*draw())
