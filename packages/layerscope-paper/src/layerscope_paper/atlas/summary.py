"""One model, or several side by side, as plain values and as charts to draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from layerscope.core.charts import Chart, Line
from layerscope.core.tables import lowest_and_highest
from layerscope.errors import LayerscopeError
from layerscope_paper.atlas.overlay import CELLS, Overlay, by_label, load_overlay
from layerscope_paper.atlas.queries import metric_values, probe_accuracies, select_scores
from layerscope_paper.atlas.reproduce.base import DEPTH, TITLES, highest, valley
from layerscope_paper.atlas.tables import AtlasModel, find_model
from layerscope_paper.correlation import same_tasks

METRICS = [
    "entropy_prompt",
    "entropy_sentence",
    "curvature",
    "entropy_dataset",
    "infonce",
    "lidar",
    "dime",
]


def or_none(query: Callable[..., pd.DataFrame], *args: Any, **options: Any) -> pd.DataFrame | None:
    """What a query of the atlas gives, or None where nothing of it was published."""
    try:
        return query(*args, **options)
    except LayerscopeError:
        return None


def drawn_metrics(model: AtlasModel) -> pd.DataFrame | None:
    """The model's metrics on the corpus the paper draws them on: wikitext for text, imagenet for
    images."""
    text = or_none(metric_values, model, "wikitext")
    return or_none(metric_values, model, "imagenet") if text is None else text


def task_table(scores: pd.DataFrame) -> pd.DataFrame:
    """Per task: the last layer scored, the best, their difference, and at how many layers there is
    a score. Scores × 100."""
    rows = []
    for task, own in scores.groupby("task", sort=True):
        top = highest(own, "score")
        last = highest(own, "layer")
        rows.append(
            {
                "task": task,
                "task_type": own["task_type"].iloc[0],
                "layers": len(own),
                "last_layer": int(last["layer"]),
                "last": 100 * float(last["score"]),
                "best": 100 * float(top["score"]),
                "layer": int(top["layer"]),
                "gain": 100 * float(top["score"] - last["score"]),
            }
        )
    return pd.DataFrame(rows)


def metric_table(values: pd.DataFrame) -> list[dict[str, Any]]:
    """Per metric: the curve, its lowest and highest layer, the last value."""
    rows = []
    for metric in [m for m in METRICS if m in set(values["metric"])]:
        own = values[values["metric"] == metric].sort_values("layer")
        y = own["value"].to_numpy(float)
        curve = {
            "values": y.tolist(),
            "layers": own["layer"].tolist(),
            **lowest_and_highest(own["layer"], y),
        }
        rows.append({"metric": metric, **curve, "last": float(y[-1])})
    return rows


def show(name: str, convention: str = "english") -> dict[str, Any]:
    """What the atlas holds of one model, as plain values."""
    model = find_model(name)
    scores = or_none(select_scores, model, convention)
    values = drawn_metrics(model)
    summary: dict[str, Any] = {
        "model": model.name,
        "convention": convention,
        "scores": None,
        "metrics": None,
    }
    if scores is not None:
        same = same_tasks(scores)
        means = 100 * same.groupby("layer")["score"].mean()
        summary["scores"] = {
            "final_norm": "applied",
            "mean_over": int(same["task"].nunique()),
            "layers": means.index.tolist(),
            "mean": means.tolist(),
            "tasks": task_table(scores).to_dict(orient="records"),
        }
    if values is not None:
        dataset = str(values["dataset"].iloc[0])
        split = str(values["split"].iloc[0])
        summary["metrics"] = {
            "dataset": dataset,
            "split": split,
            "final_norm": "hf",
            "curves": metric_table(values),
        }
    probes = or_none(probe_accuracies, model)
    if probes is not None:
        top = highest(probes, "top1")
        last = probes.iloc[-1]
        summary["probe"] = {
            "dataset": "imagenet100",
            "layers": probes["layer"].tolist(),
            "top1": probes["top1"].tolist(),
            "best": {"layer": int(top["layer"]), "top1": float(top["top1"])},
            "last": {"layer": int(last["layer"]), "top1": float(last["top1"])},
        }
    return summary


class _Side:
    """Published models and a user's runs side by side: what each has, by the name its line has."""

    def __init__(self, names: Sequence[str], convention: str, overlays: Sequence[Overlay]) -> None:
        self.models = [find_model(name) for name in names]
        runs = by_label(overlays)
        self.order = [*(model.name for model in self.models), *runs]
        scores = {m.name: or_none(select_scores, m, convention) for m in self.models} | {
            name: run.scores for name, run in runs.items()
        }
        values = {m.name: drawn_metrics(m) for m in self.models} | {
            name: run.metrics for name, run in runs.items()
        }
        tables = {
            name: same_tasks(table)
            for name, table in scores.items()
            if table is not None and len(table)
        }
        self.metrics = {
            name: table for name, table in values.items() if table is not None and len(table)
        }
        self.tasks = (
            set.intersection(*(set(table["task"]) for table in tables.values()))
            if tables
            else set()
        )
        self.means = {name: self._mean(table) for name, table in tables.items() if self.tasks}

    def _mean(self, table: pd.DataFrame) -> pd.DataFrame:
        """By layer, over the tasks that all have: score × 100 and depth."""
        own = table[table["task"].isin(self.tasks)].groupby("layer", as_index=False)
        return own.agg(score=("score", "mean"), depth=("depth", "first")).assign(
            score=lambda means: 100 * means["score"]
        )

    def curve(self, name: str, metric: str) -> pd.DataFrame | None:
        """A metric by layer, where it was measured."""
        values = self.metrics.get(name)
        own = None if values is None else values[values["metric"] == metric].sort_values("layer")
        return None if own is None or own.empty else own


def compare(
    names: Sequence[str], convention: str = "english", overlays: Sequence[Overlay] = ()
) -> list[dict[str, Any]]:
    """One row per model: best and last layer on the tasks that all of them have at their layers,
    and the entropy's valley."""
    side = _Side(names, convention, overlays)
    rows = []
    for name in side.order:
        row: dict[str, Any] = {
            "model": name,
            **dict.fromkeys(("tasks", "best", "layer", "depth", "last", "gain")),
        }
        if name in side.means:
            means = side.means[name]
            top = highest(means, "score")
            last = means.iloc[-1]
            row |= {
                "tasks": len(side.tasks),
                "best": top["score"],
                "layer": int(top["layer"]),
                "depth": top["depth"],
            }
            row |= {"last": last["score"], "gain": top["score"] - last["score"]}
        row |= {"valley": None, "valley_layer": None}
        curve = side.curve(name, "entropy_prompt")
        if curve is not None and len(curve) > 2:
            row["valley_layer"], row["valley"], _ = valley(curve["value"].to_numpy(float))
        rows.append(row)
    return rows


def charts(
    names: Sequence[str], convention: str = "english", overlays: Sequence[Overlay] = ()
) -> list[Chart]:
    """Mean score and each metric against depth, models and runs on the same axes."""
    side = _Side(names, convention, overlays)
    probes = {m.name: p for m in side.models if (p := or_none(probe_accuracies, m)) is not None}
    curves = {name: [(one, side.curve(one, name)) for one in side.order] for name in METRICS}
    drawn: list[tuple[str, str, list[tuple[str, pd.DataFrame | None]]]] = [
        (
            f"mean MTEB score, {len(side.tasks)} tasks ({convention})",
            "score",
            [(one, side.means.get(one)) for one in side.order],
        ),
        ("attention probe, ImageNet-100 top-1 (%)", "top1", list(probes.items())),
        *((TITLES[metric], "value", lines) for metric, lines in curves.items()),
    ]
    out = []
    for title, column, tables in drawn:
        lines = []
        for name, table in tables:
            if table is not None:
                best = (
                    None if column == "value" else (float(highest(table, column)["depth"]), "")
                )  # a metric has no best
                lines.append(Line.of(name, table, column, x="depth", note=best))
        if lines:
            out.append(Chart(title, lines, x=DEPTH))
    return out


def lay_beside(
    paths: Sequence[str | Path], models: Sequence[str], convention: str = "english"
) -> list[Overlay]:
    """Runs by their folders, and every value of theirs that the atlas has of one of the models."""
    overlays = [load_overlay(path) for path in paths]
    for overlay in overlays:
        cells = [_cells(overlay, model, convention) for model in models]
        overlay.cells = pd.concat([overlay.cells, *cells], ignore_index=True)
    return overlays


def _cells(overlay: Overlay, model: str, convention: str) -> pd.DataFrame:
    """Every value that the atlas has of a model and the run has too; none where the run has another
    number of layers."""
    found = []
    known = find_model(model)
    published = drawn_metrics(known), or_none(select_scores, known, convention)
    for theirs, mine in zip(published, (overlay.metrics, overlay.scores), strict=True):
        if theirs is not None and len(mine):
            both = mine.merge(
                theirs[[*mine.columns]], on=list(mine.columns[:3]), suffixes=("", "_published")
            )
            both.columns = ["name", "layer", "depth", "own", "published"]
            found += (
                [both] if both["layer"].gt(0).any() else []
            )  # layer 0 alone: the run has other layers
    cells = pd.concat([pd.DataFrame(columns=CELLS), *found])
    return cells.assign(model=known.name, difference=cells["own"] - cells["published"])[CELLS]
