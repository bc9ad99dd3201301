"""One published model, or several side by side, as plain values and as charts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from layerscope.core.charts import Chart, Line
from layerscope.core.columns import lowest_and_highest
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
    """Return the result of a query of the atlas, or None where nothing of it was published."""
    try:
        return query(*args, **options)
    except LayerscopeError:
        return None


def drawn_metrics(model: AtlasModel) -> pd.DataFrame | None:
    """Return the model's metrics on the corpus the paper draws them on: wikitext for text, imagenet
    for images."""
    text = or_none(metric_values, model, "wikitext")
    return or_none(metric_values, model, "imagenet") if text is None else text


def task_table(scores: pd.DataFrame) -> pd.DataFrame:
    """Return a row per task: the last layer scored, the best, their difference, and the number of
    layers with a score. Scores × 100."""
    rows = []
    for task, task_scores in scores.groupby("task", sort=True):
        top = highest(task_scores, "score")
        last = highest(task_scores, "layer")
        rows.append(
            {
                "task": task,
                "task_type": task_scores["task_type"].iloc[0],
                "layers": len(task_scores),
                "last_layer": int(last["layer"]),
                "last": 100 * float(last["score"]),
                "best": 100 * float(top["score"]),
                "layer": int(top["layer"]),
                "gain": 100 * float(top["score"] - last["score"]),
            }
        )
    return pd.DataFrame(rows)


def metric_table(values: pd.DataFrame) -> list[dict[str, Any]]:
    """Return, per metric, the curve, its lowest and highest layer, and the last value."""
    rows = []
    for metric in [m for m in METRICS if m in set(values["metric"])]:
        curve = values[values["metric"] == metric].sort_values("layer")
        y = curve["value"].to_numpy(float)
        rows.append(
            {
                "metric": metric,
                "values": y.tolist(),
                "layers": curve["layer"].tolist(),
                **lowest_and_highest(curve["layer"], y),
                "last": float(y[-1]),
            }
        )
    return rows


def show(name: str, convention: str = "english") -> dict[str, Any]:
    """Return what was published of one model, as plain values."""
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
        shared = same_tasks(scores)
        means = 100 * shared.groupby("layer")["score"].mean()
        summary["scores"] = {
            "final_norm": "applied",
            "mean_over": int(shared["task"].nunique()),
            "layers": means.index.tolist(),
            "mean": means.tolist(),
            "tasks": task_table(scores).to_dict(orient="records"),
        }
    if values is not None:
        summary["metrics"] = {
            "dataset": str(values["dataset"].iloc[0]),
            "split": str(values["split"].iloc[0]),
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
        """Return, by layer, over the tasks that all have: score × 100 and depth."""
        layers = table[table["task"].isin(self.tasks)].groupby("layer", as_index=False)
        means = layers.agg(score=("score", "mean"), depth=("depth", "first"))
        return means.assign(score=100 * means["score"])

    def curve(self, name: str, metric: str) -> pd.DataFrame | None:
        """Return a metric by layer; None where it was not measured."""
        if name not in self.metrics:
            return None
        values = self.metrics[name]
        curve = values[values["metric"] == metric].sort_values("layer")
        return None if curve.empty else curve


def compare(
    names: Sequence[str], convention: str = "english", overlays: Sequence[Overlay] = ()
) -> list[dict[str, Any]]:
    """Return a row per model: best and last layer on the tasks that all of them have at their
    layers, and the entropy's valley."""
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
                "last": last["score"],
                "gain": top["score"] - last["score"],
            }
        row |= {"valley": None, "valley_layer": None}
        curve = side.curve(name, "entropy_prompt")
        if curve is not None and len(curve) > 2:
            row["valley_layer"], row["valley"], _ = valley(curve["value"].to_numpy(float))
        rows.append(row)
    return rows


def charts(
    names: Sequence[str], convention: str = "english", overlays: Sequence[Overlay] = ()
) -> list[Chart]:
    """Return charts of the mean score and each metric against depth, models and runs on the same
    axes."""
    side = _Side(names, convention, overlays)
    title = f"mean MTEB score, {len(side.tasks)} tasks ({convention})"
    probes = {model.name: or_none(probe_accuracies, model) for model in side.models}
    panels: list[tuple[str, str, dict[str, pd.DataFrame | None]]] = [
        (title, "score", {name: side.means.get(name) for name in side.order}),
        ("attention probe, ImageNet-100 top-1 (%)", "top1", probes),
    ]
    for metric in METRICS:
        curves = {name: side.curve(name, metric) for name in side.order}
        panels.append((TITLES[metric], "value", curves))
    drawn = []
    for title, column, tables in panels:
        lines = []
        for name, table in tables.items():
            if table is None:
                continue
            line = Line.of(name, table, column, x="depth")
            if column != "value":  # a metric has no best layer
                line = replace(line, note=(float(highest(table, column)["depth"]), ""))
            lines.append(line)
        if lines:
            drawn.append(Chart(title, lines, x=DEPTH))
    return drawn


def lay_beside(
    paths: Sequence[str | Path], models: Sequence[str], convention: str = "english"
) -> list[Overlay]:
    """Return the runs in these folders, with every value of theirs that was published of one of the
    models."""
    overlays = [load_overlay(path) for path in paths]
    for overlay in overlays:
        cells = [_cells(overlay, model, convention) for model in models]
        overlay.cells = pd.concat([overlay.cells, *cells], ignore_index=True)
    return overlays


def _cells(overlay: Overlay, model: str, convention: str) -> pd.DataFrame:
    """Return every value that was published of a model and that the run has too; none where the run
    has another number of layers."""
    published = find_model(model)
    pairs = (
        (overlay.metrics, drawn_metrics(published)),
        (overlay.scores, or_none(select_scores, published, convention)),
    )
    tables = [pd.DataFrame(columns=CELLS)]
    for values, published_values in pairs:
        if published_values is None or values.empty:
            continue
        keys = list(values.columns[:3])
        merged = values.merge(
            published_values[[*values.columns]], on=keys, suffixes=("", "_published")
        )
        merged.columns = ["name", "layer", "depth", "own", "published"]
        if merged["layer"].gt(0).any():  # layer 0 alone: the run has other layers
            tables.append(merged)
    cells = pd.concat(tables)
    difference = cells["own"] - cells["published"]
    return cells.assign(model=published.name, difference=difference)[CELLS]
