"""One model, or several side by side, as plain values and as panels to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from layerscope.atlas.imports import imported_runs, is_imported, show_imported
from layerscope.atlas.overlay import Overlay, labeled
from layerscope.atlas.queries import metric_values, probes_or_none, select_scores
from layerscope.atlas.reproduce.base import TITLES, Panel, Series, highest, valley
from layerscope.atlas.tables import AtlasModel, find_model
from layerscope.core.tables import lowest_and_highest
from layerscope.correlation import same_tasks
from layerscope.errors import LayerscopeError

METRICS = ["entropy_prompt", "entropy_sentence", "curvature", "entropy_dataset", "infonce", "lidar", "dime"]


def scores_or_none(model: AtlasModel, convention: str) -> pd.DataFrame | None:
    """The model's scores, or None where none were published."""
    try:
        return select_scores(model, convention)
    except LayerscopeError:
        return None


def metrics_or_none(model: AtlasModel) -> pd.DataFrame | None:
    """The model's metrics on the corpus the paper draws them on: wikitext for text, imagenet for images."""
    for dataset in ("wikitext", "imagenet"):
        try:
            return metric_values(model, dataset)
        except LayerscopeError:
            continue
    return None


def task_table(scores: pd.DataFrame) -> pd.DataFrame:
    """Per task: the last layer scored, the best, their difference, and at how many layers there is a score. Scores × 100."""
    rows = []
    for task, own in scores.groupby("task", sort=True):
        top, last = highest(own, "score"), highest(own, "layer")
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
        curve = {"values": y.tolist(), "layers": own["layer"].tolist(), **lowest_and_highest(own["layer"], y)}
        rows.append({"metric": metric, **curve, "last": float(y[-1])})
    return rows


def split_imported(names: Sequence[str]) -> tuple[list[str], list[Overlay]]:
    """Names of published models, and what of the imported ones (`FOLDER:MODEL`) can stand beside them."""
    runs = [run for name in names if is_imported(name) for run in imported_runs(name)]
    return [name for name in names if not is_imported(name)], [o for run in runs if (o := run.overlay()) is not None]


def show(name: str, convention: str = "english") -> dict[str, Any]:
    """What the atlas holds of one model, published or imported, as plain values."""
    if is_imported(name):
        return show_imported(name)
    model = find_model(name)
    scores, values = scores_or_none(model, convention), metrics_or_none(model)
    summary: dict[str, Any] = {"model": model.name, "convention": convention, "scores": None, "metrics": None}
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
        dataset, split = str(values["dataset"].iloc[0]), str(values["split"].iloc[0])
        summary["metrics"] = {"dataset": dataset, "split": split, "final_norm": "hf", "curves": metric_table(values)}
    probes = probes_or_none(model)
    if probes is not None:
        top, last = highest(probes, "top1"), probes.iloc[-1]
        summary["probe"] = {
            "dataset": "imagenet100",
            "layers": probes["layer"].tolist(),
            "top1": probes["top1"].tolist(),
            "best": {"layer": int(top["layer"]), "top1": float(top["top1"])},
            "last": {"layer": int(last["layer"]), "top1": float(last["top1"])},
        }
    return summary


def compare(names: Sequence[str], convention: str = "english", overlays: Sequence[Overlay] = ()) -> list[dict[str, Any]]:
    """One row per model: best and last layer on the tasks that all of them have at their layers, and the entropy's valley."""
    published, shared_by_others = split_imported(names)
    models, overlays = [find_model(name) for name in published], [*overlays, *shared_by_others]
    tables = {m.name: same_tasks(s) for m in models if (s := scores_or_none(m, convention)) is not None}
    runs = labeled(overlays)
    tables |= {label: same_tasks(run.scores) for label, run in runs.items() if not run.scores.empty}
    shared = set.intersection(*(set(t["task"]) for t in tables.values())) if tables else set()
    rows = []
    for name in [m.name for m in models] + list(runs):
        row: dict[str, Any] = {
            "model": name,
            "tasks": None,
            "best": None,
            "layer": None,
            "depth": None,
            "last": None,
            "gain": None,
        }
        if name in tables and shared:
            own = tables[name][tables[name]["task"].isin(shared)]
            means = own.groupby("layer", as_index=False).agg(score=("score", "mean"), depth=("depth", "first"))
            top, last = highest(means, "score"), means.iloc[-1]
            row |= {
                "tasks": len(shared),
                "best": 100 * top["score"],
                "layer": int(top["layer"]),
                "depth": top["depth"],
            }
            row |= {"last": 100 * last["score"], "gain": 100 * (top["score"] - last["score"])}
        row |= {"valley": None, "valley_layer": None}
        curve = _entropy(name, models, runs)
        if curve is not None and len(curve) > 2:
            at, deep, _ = valley(curve)
            row |= {"valley": deep, "valley_layer": at}
        rows.append(row)
    return rows


def _entropy(name: str, models: Sequence[AtlasModel], runs: Mapping[str, Overlay]) -> np.ndarray | None:
    """The curve of prompt entropy of a model of the atlas or of a run, or None."""
    if name in runs:
        values: pd.DataFrame | None = runs[name].metrics
    else:
        values = next(metrics_or_none(model) for model in models if model.name == name)
    if values is None:
        return None
    own = values[values["metric"] == "entropy_prompt"].sort_values("layer")
    return None if own.empty else own["value"].to_numpy(float)


def panels(names: Sequence[str], convention: str = "english", overlays: Sequence[Overlay] = ()) -> list[Panel]:
    """Mean score and each metric against depth, models and runs on the same axes."""
    published, shared_by_others = split_imported(names)
    models, overlays = [find_model(name) for name in published], [*overlays, *shared_by_others]
    tables = {m.name: same_tasks(s) for m in models if (s := scores_or_none(m, convention)) is not None}
    runs = labeled(overlays)
    tables |= {label: same_tasks(run.scores) for label, run in runs.items() if not run.scores.empty}
    curves = {m.name: v for m in models if (v := metrics_or_none(m)) is not None}
    curves |= {label: run.metrics for label, run in runs.items() if not run.metrics.empty}
    order = [m.name for m in models] + list(runs)
    out = []
    shared = set.intersection(*(set(t["task"]) for t in tables.values())) if tables else set()
    if shared:
        series = []
        for name in order:
            if name in tables:
                own = (
                    tables[name][tables[name]["task"].isin(shared)]
                    .groupby("layer")
                    .agg(y=("score", "mean"), x=("depth", "first"))
                )
                series.append(Series(name, own["x"].tolist(), (100 * own["y"]).tolist(), mark=int(own["y"].to_numpy().argmax())))
        out.append(Panel(f"mean MTEB score, {len(shared)} tasks ({convention})", "depth (layer / blocks)", "", series))
    probes = {m.name: p for m in models if (p := probes_or_none(m)) is not None}
    if probes:
        series = [
            Series(name, p["depth"].tolist(), p["top1"].tolist(), mark=int(p["top1"].to_numpy().argmax()))
            for name, p in probes.items()
        ]
        out.append(Panel("attention probe, ImageNet-100 top-1 (%)", "depth (layer / blocks)", "", series))
    for metric in METRICS:
        series = []
        for name in order:
            if name in curves:
                line = curves[name][curves[name]["metric"] == metric].sort_values("layer")
                if not line.empty:
                    series.append(Series(name, line["depth"].tolist(), line["value"].tolist()))
        if series:
            out.append(Panel(TITLES[metric], "depth (layer / blocks)", "", series))
    return out
