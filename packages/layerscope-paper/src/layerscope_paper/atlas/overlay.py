"""A user's own run beside the atlas: what may share its axes, and what may not and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from layerscope.core.conventions import Reading
from layerscope.core.readout import Readout
from layerscope.core.runs import load_run
from layerscope.core.sites import whole_layers
from layerscope.errors import RunFolderError

if TYPE_CHECKING:
    from layerscope.evaluation.run import Evaluation
    from layerscope.profiling import Profile

OURS = {  # the atlas's names of our metrics
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
_NORM = "final_norm is {given}, the published metrics are hf"


@dataclass
class Overlay:
    """What of a run can stand beside the atlas. `metrics`: metric, layer, depth, value. `scores`:
    task, layer, depth, score."""

    name: str
    metrics: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame(columns=["metric", "layer", "depth", "value"])
    )
    scores: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame(columns=["task", "layer", "depth", "score"])
    )
    differs: dict[str, list[str]] = field(
        default_factory=dict
    )  # metric or task → why it is left out
    notes: list[str] = field(default_factory=list)
    folder: str = ""
    cells: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame(columns=CELLS)
    )  # published and own values, layer by layer

    @property
    def label(self) -> str:
        """What its line is called beside published models."""
        return f"your run: {self.name}"

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the run can be compared."""
        return self.metrics.empty and self.scores.empty

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
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
    """Overlays by the name a reader sees: a profile and an evaluation of one model are one line,
    two profiles of it are two."""
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
            lines[
                f"{label} in {overlay.folder}" if overlay.folder else f"{label} ({len(lines) + 1})"
            ] = overlay
    return lines


def overlay_metrics(run: Profile) -> Overlay:
    """The curves of a profile that were made as the published ones were."""
    conventions = run.manifest["conventions"]
    comparable = []
    differs = {}
    measured = set(run.table["metric"])
    for theirs, ours in OURS.items():
        if ours not in measured:
            continue
        reasons = metric_differences(theirs, conventions)
        if reasons:
            differs[theirs] = reasons
            continue
        rows = whole_layers(run.curve(ours)).dropna(subset=["value"])
        comparable.append(rows[["layer", "depth", "value"]].assign(metric=theirs))
    out = Overlay(run.name, differs=differs)
    if comparable:
        out.metrics = pd.concat(comparable, ignore_index=True)[
            ["metric", "layer", "depth", "value"]
        ]
    if comparable and "image_tokens" in conventions:
        out.notes.append(
            f"your values are on {run.manifest['counts']['prompts']} images of "
            f"{run.manifest['corpus']['name']}; the published ones on ImageNet's validation images "
            "at 224 pixels, in half precision, and MAE's with its patches shuffled."
        )
    elif comparable:
        corpus = run.manifest["corpus"]["name"]
        prompts = run.manifest["counts"]["prompts"]
        out.notes.append(
            f"your values are on {prompts} prompts of {corpus}, up to "
            f"{Reading.of(conventions).max_length} tokens; the published ones on 472 prompts of "
            "wikitext. Prompt entropy grows with the prompts' length, the metrics over prompts "
            "with their number."
        )
    return out


def metric_differences(metric: str, conventions: Mapping[str, Any]) -> list[str]:
    """Why a profile's metric is not the published one, setting by setting; empty if it is."""
    reasons = []
    images = "image_tokens" in conventions
    alike = ("hf", "raw") if images and "raw" in str(conventions.get("hf")) else ("hf",)
    reading = Reading.of(conventions)
    if reading.has_norm and reading.final_norm not in alike:
        reasons.append(_NORM.format(given=reading.final_norm))
    if images and "left out" in str(conventions.get("tokens")):
        reasons.append(
            "class and register tokens are left out, the published metrics read every token"
        )
    settings = conventions["metrics"]
    for name, wanted in _NEEDS[metric].items():
        if settings.get(name) != wanted:
            reasons.append(f"{name} is {settings.get(name)}, the published code has {wanted}")
    if metric in ("infonce", "lidar", "dime") and images:
        reasons.append(
            "views are made by layerscope's augmentations, the published ones by SimCLR's, which "
            "are stronger"
        )
    elif metric in ("infonce", "lidar", "dime"):
        if conventions.get("augmenter") != "nlpaug":
            reasons.append(
                f"views are made by {conventions.get('augmenter')}, the published ones by nlpaug"
            )
        if metric == "lidar" and conventions.get("views") != 16:
            reasons.append(f"{conventions.get('views')} views, the published LiDAR has 16")
    return reasons


def overlay_scores(evaluation: Evaluation) -> Overlay:
    """The scores of an evaluation that were made as the published ones were, under the `english`
    convention."""
    from layerscope_paper.atlas.tables import stored_table

    published = set(stored_table("tasks")["task"].astype(str))
    scores = evaluation.scores
    differs = {}
    comparable = []
    mask = pd.Series(True, index=scores.index)
    for column, wanted in READOUT.items():
        mask &= scores[column] == wanted
    reasons = []
    if evaluation.manifest["conventions"].get("unit_length"):
        reasons.append("vectors were scaled to length 1, the published ones were not")
    for task, rows in scores.groupby("task", sort=False):
        mine = rows[mask.loc[rows.index]]
        why = reasons or _task_differences(str(task), mine, evaluation.manifest, published)
        if why:
            differs[str(task)] = why
        else:
            comparable.append(
                mine.dropna(subset=["score"])
                .groupby(["task", "layer", "depth"])["score"]
                .mean()
                .reset_index()
            )
    out = Overlay(str(evaluation.manifest["model"]["name"]), differs=differs)
    if comparable:
        out.scores = pd.concat(comparable, ignore_index=True)
        length = Reading.of(evaluation.manifest).max_length
        out.notes = [
            f"your texts were cut to {length} tokens; the published scores do not say at how many."
        ]
    return out


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
