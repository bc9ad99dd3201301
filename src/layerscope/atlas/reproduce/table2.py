"""Table 2: mean MTEB score under different ways of choosing the layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from layerscope.atlas.queries import metric_values, select_scores
from layerscope.atlas.reproduce.base import Item, Row, highest, score_means
from layerscope.core.charts import Chart, Line

MODELS = {"Pythia-410M": "Pythia-410m", "LLM2Vec-8B": "LLM2Vec-mntp-unsup-simcse"}
RULES = {"min_dime": "dime", "min_infonce": "infonce", "min_entropy_dataset": "entropy_dataset"}
PRINTED = {
    "Pythia-410M": {"best": 52.0, "last": 45.5, "min_dime": 48.5, "min_infonce": 46.2, "min_entropy_dataset": 48.1},
    "LLM2Vec-8B": {"best": 66.3, "last": 63.9, "min_dime": 60.0, "min_infonce": 64.3, "min_entropy_dataset": 50.4},
}


@dataclass(frozen=True)
class ChosenLayer:
    """A rule's mean score over the tasks it can be applied to, and what else those tasks allow."""

    value: float
    tasks: int
    last: float
    best: float  # each task at its own best layer


def lowest_metric(model: str, metric: str, convention: str) -> ChosenLayer:
    """Per task: the layer with the lowest value of the metric on the task's own dataset, among the layers with a score."""
    scores = select_scores(model, convention)
    values = metric_values(model, "mteb", metric)
    both = scores.merge(values[["task", "layer", "value"]], on=["task", "layer"])
    picked = both.loc[both.groupby("task")["value"].idxmin()]
    mine = scores[scores["task"].isin(picked["task"])]
    last = mine[mine["layer"] == scores["layer"].max()]
    best = mine.groupby("task")["score"].max()
    return ChosenLayer(*(100 * picked["score"].mean(), len(picked), 100 * last["score"].mean(), 100 * best.mean()))


def best_with_all_tasks(means: pd.DataFrame) -> tuple[int, float]:
    """The best layer among those where no task is missing."""
    whole = means[means["tasks"] == means["tasks"].max()]
    top = highest(whole, "score")
    return int(top["layer"]), float(top["score"])


def rows(convention: str) -> Iterator[Row]:
    """Ten cells. Under `authors` the digits are judged; under `english`, whose digits must differ, what the cell says."""
    for title, model in MODELS.items():
        printed = PRINTED[title]
        means = score_means(model, convention)
        top, last = highest(means, "score"), highest(means, "layer")
        layer, whole = best_with_all_tasks(means)
        note = f"layer {int(top['layer'])}"
        if int(top["layer"]) != layer:
            note += f", which lacks {means['tasks'].max() - int(top['tasks'])} task; with all tasks {whole:.2f} at layer {layer}"
        inner = whole > float(last["score"])
        cells = {"best": (float(top["score"]), int(top["tasks"]), inner, note)}
        cells["last"] = float(last["score"]), int(last["tasks"]), inner, f"layer {int(last['layer'])}"
        for column, metric in RULES.items():
            rule = lowest_metric(model, metric, convention)
            gain = rule.value - rule.last
            same_side = (gain > 0) == (printed[column] > printed["last"])
            note = f"{gain:+.2f} over the last layer on the same tasks ({rule.last:.2f}); per-task best {rule.best:.2f}"
            cells[column] = rule.value, rule.tasks, same_side, note
        for column, (ours, tasks, holds, note) in cells.items():
            if convention == "authors":
                holds = abs(printed[column] - ours) <= 0.05 + 1e-9  # our number rounds to the printed one
            else:
                beats = "an inner layer beats the last"
                note += f"; judged: {'on the same side of the last layer as printed' if column in RULES else beats}"
            yield Row(title, column, ours, holds, note, tasks, printed[column])


def charts(convention: str) -> list[Chart]:
    """Mean score by layer, and each rule's mean as a bar."""
    out, cells = [], list(rows(convention))
    for title in MODELS:
        mine = [row for row in cells if row.model == title]
        names = [row.column.replace("min_", "lowest\n").replace("entropy_dataset", "dataset\nentropy") for row in mine]
        ours = Line(f"recomputed, {convention}", names, [float(row.ours or 0) for row in mine])
        printed = Line("printed", names, [float(row.printed or 0) for row in mine])
        out.append(Chart(title, [printed, ours], "mean MTEB score", x="", bars=True))
    return out


ITEM = Item(
    "table2",
    "Table 2: mean MTEB score when the layer is chosen without labels",
    "Choosing each task's layer by the lowest DiME, InfoNCE or dataset entropy improves on the last layer for Pythia-410M.",
    rows,
    charts,
)
