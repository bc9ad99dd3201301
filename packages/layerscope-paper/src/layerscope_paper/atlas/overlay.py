"""A user's run beside the published results: values that compare, and reasons why others do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from layerscope.core.identity import Reading
from layerscope.core.readout import Readout
from layerscope.core.runs import load_run
from layerscope.core.sites import whole_layers
from layerscope.errors import RunFolderError
from layerscope_paper.atlas.tables import stored_table

if TYPE_CHECKING:
    from layerscope.evaluation.run import Evaluation
    from layerscope.profiling import Profile

# metrics of a profile by their published names
PROFILE_METRICS = {
    "entropy_prompt": "prompt_entropy",
    "entropy_dataset": "dataset_entropy",
    "curvature": "curvature",
    "infonce": "infonce",
    "lidar": "lidar",
    "dime": "dime",
}
READOUT = Readout().columns
_VIEWS: dict[str, Any] = {"view_rows": "centered-unit", "group": 64}
# the released code's settings that each metric depends on (preset `released`)
_NEEDS: dict[str, dict[str, Any]] = {
    "entropy_prompt": {"alpha": 1.0, "rows": "centered-unit", "clamp_gram": True},
    "entropy_dataset": {
        "alpha": 1.0,
        "pooled_rows": "centered-unit",
        "clamp_gram": True,
        "group": 64,
    },
    "curvature": {"curvature_absolute": True},
    "infonce": {**_VIEWS, "temperature": 0.1, "infonce_one_way": True},
    "lidar": {"lidar_rows": "centered-unit", "group": 64, "delta": 1e-4},
    "dime": {**_VIEWS, "alpha": 1.0, "clamp_gram": True, "dime_feature_side": True},
}
_SUBSETS = {"STS17": ["en-en"], "AmazonCounterfactualClassification": ["en", "en-ext"]}
CELLS = ["model", "name", "layer", "published", "own", "difference"]


def _empty(*columns: str) -> Callable[[], pd.DataFrame]:
    """Return a function that makes an empty table."""
    return partial(pd.DataFrame, columns=list(columns))


@dataclass
class Overlay:
    """The values of a run that compare with the published ones.

    `differs` has, by metric or task, the reasons why it does not compare; `cells` the published and
    own values, layer by layer.
    """

    name: str
    metrics: pd.DataFrame = field(default_factory=_empty("metric", "layer", "depth", "value"))
    scores: pd.DataFrame = field(default_factory=_empty("task", "layer", "depth", "score"))
    differs: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    folder: str = ""
    cells: pd.DataFrame = field(default_factory=_empty(*CELLS))

    @property
    def label(self) -> str:
        """The name of its line beside published models."""
        return f"your run: {self.name}"

    @property
    def is_empty(self) -> bool:
        """True if nothing of the run can be compared."""
        return self.metrics.empty and self.scores.empty

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "run": self.name,
            "metrics": sorted(set(self.metrics["metric"])),
            "tasks": sorted(set(self.scores["task"])),
            "left_out": self.differs,
            "notes": self.notes,
            "cells": self.cells.to_dict(orient="records"),
        }


def load_overlay(path: str | Path) -> Overlay:
    """Read a run's folder, a profile or an evaluation."""
    run: Any = load_run(path)
    if run.kind not in ("profile", "evaluation"):
        raise RunFolderError(
            f"{path} holds a run of kind {run.kind}: a profile or an evaluation is compared with "
            "the atlas."
        )
    overlay = overlay_scores(run) if run.kind == "evaluation" else overlay_metrics(run)
    overlay.folder = str(path)
    return overlay


def by_label(overlays: Sequence[Overlay]) -> dict[str, Overlay]:
    """Return overlays by the label of their line: a profile and an evaluation of one model are one
    line, two profiles of it are two."""
    lines: dict[str, Overlay] = {}
    for overlay in (o for o in overlays if not o.is_empty):
        label = overlay.label
        earlier = lines.get(label)
        if earlier is None:
            lines[label] = overlay
        elif earlier.metrics.empty and overlay.scores.empty:
            lines[label] = replace(overlay, scores=earlier.scores)
        elif earlier.scores.empty and overlay.metrics.empty:
            lines[label] = replace(overlay, metrics=earlier.metrics)
        else:
            suffix = f"in {overlay.folder}" if overlay.folder else f"({len(lines) + 1})"
            lines[f"{label} {suffix}"] = overlay
    return lines


def overlay_metrics(run: Profile) -> Overlay:
    """Return the curves of a profile that were made as the published ones were."""
    conventions = run.manifest["conventions"]
    curves = []
    overlay = Overlay(run.name)
    measured = set(run.table["metric"])
    for published, metric in PROFILE_METRICS.items():
        if metric not in measured:
            continue
        reasons = metric_differences(published, conventions)
        if reasons:
            overlay.differs[published] = reasons
            continue
        rows = whole_layers(run.curve(metric)).dropna(subset=["value"])
        curves.append(rows[["layer", "depth", "value"]].assign(metric=published))
    if not curves:
        return overlay
    overlay.metrics = pd.concat(curves, ignore_index=True)[["metric", "layer", "depth", "value"]]
    count = run.manifest["counts"]["prompts"]
    corpus = run.manifest["corpus"]["name"]
    if "image_tokens" in conventions:
        overlay.notes.append(
            f"your values are on {count} images of {corpus}; the published ones on ImageNet's "
            "validation images at 224 pixels, in half precision, and MAE's with its patches "
            "shuffled."
        )
    else:
        overlay.notes.append(
            f"your values are on {count} prompts of {corpus}, up to "
            f"{Reading.of(conventions).max_length} tokens; the published ones on 472 prompts of "
            "wikitext. Prompt entropy grows with the prompts' length, the metrics over prompts "
            "with their number."
        )
    return overlay


def metric_differences(metric: str, conventions: Mapping[str, Any]) -> list[str]:
    """Return the settings in which a profile's metric differs from the published one."""
    reasons = []
    images = "image_tokens" in conventions
    norms = ("hf", "raw") if images and "raw" in str(conventions.get("hf")) else ("hf",)
    reading = Reading.of(conventions)
    if reading.has_norm and reading.final_norm not in norms:
        reasons.append(f"final_norm is {reading.final_norm}, the published metrics are hf")
    if images and "left out" in str(conventions.get("tokens")):
        reasons.append(
            "class and register tokens are left out, the published metrics read every token"
        )
    settings = conventions["metrics"]
    for name, published in _NEEDS[metric].items():
        if settings.get(name) != published:
            reasons.append(f"{name} is {settings.get(name)}, the published code has {published}")
    if metric not in ("infonce", "lidar", "dime"):
        return reasons
    if images:
        reasons.append(
            "views are made by layerscope's augmentations, the published ones by SimCLR's, which "
            "are stronger"
        )
        return reasons
    if conventions.get("augmenter") != "nlpaug":
        reasons.append(
            f"views are made by {conventions.get('augmenter')}, the published ones by nlpaug"
        )
    if metric == "lidar" and conventions.get("views") != 16:
        reasons.append(f"{conventions.get('views')} views, the published LiDAR has 16")
    return reasons


def overlay_scores(evaluation: Evaluation) -> Overlay:
    """Return the scores of an evaluation that were made as the published ones were, under the
    `english` convention."""
    published = set(stored_table("tasks")["task"].astype(str))
    scores = evaluation.scores
    tables = []
    overlay = Overlay(str(evaluation.manifest["model"]["name"]))
    mask = pd.Series(True, index=scores.index)
    for column, value in READOUT.items():
        mask &= scores[column] == value
    scaled = []
    if evaluation.manifest["conventions"].get("unit_length"):
        scaled = ["vectors were scaled to length 1, the published ones were not"]
    for task, task_rows in scores.groupby("task", sort=False):
        rows = task_rows[mask.loc[task_rows.index]]
        reasons = scaled or _task_differences(str(task), rows, evaluation.manifest, published)
        if reasons:
            overlay.differs[str(task)] = reasons
        else:
            groups = rows.dropna(subset=["score"]).groupby(["task", "layer", "depth"])
            tables.append(groups["score"].mean().reset_index())
    if tables:
        overlay.scores = pd.concat(tables, ignore_index=True)
        length = Reading.of(evaluation.manifest).max_length
        overlay.notes = [
            f"your texts were cut to {length} tokens; the published scores do not say at how many."
        ]
    return overlay


def _task_differences(
    task: str, rows: pd.DataFrame, manifest: Mapping[str, Any], published: set[str]
) -> list[str]:
    if task not in published:
        return ["not one of the paper's 32 tasks"]
    if rows.empty:
        return [f"no scores under the published readout {Readout().name}"]
    reasons = []
    subsets = sorted(set(rows["subset"]))
    splits = sorted(set(rows["split"]))
    if task in _SUBSETS and subsets != _SUBSETS[task]:
        reasons.append(
            f"subsets {', '.join(subsets)}; the english convention has "
            f"{' and '.join(_SUBSETS[task])}"
        )
    if splits != ["test"]:
        reasons.append(f"split {', '.join(splits)}, the published scores are on test")
    facts = manifest["tasks"].get(task, {})
    if facts.get("exact") is False:
        reasons.append(f"not MTEB's data ({facts.get('exact_reason')})")
    return reasons
