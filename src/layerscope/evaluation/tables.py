"""From job results to tables: scores, and gains over the last layer with the layers that tie for best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from layerscope.evaluation.readout import Readout
from layerscope.evaluation.score import Job, Scene, read_items
from layerscope.evaluation.uncertainty import gains, resampled, same_items, tied_best

SCORE_COLUMNS = ["task", "task_type", "split", "subset", "metric", "template", "layer", "site", "depth"]
SCORE_COLUMNS += ["final_norm", "pooling", "sink", "centring", "score"]
READOUT_COLUMNS = ["template", "pooling", "final_norm", "sink", "centring"]
GAIN_COLUMNS = ["task", "split", "subset", *READOUT_COLUMNS, "layer", "site", "score", "gain", "ci_low", "ci_high", "tied_best"]


def score_table(results: Sequence[Mapping[str, Any]], n_blocks: int) -> pd.DataFrame:
    """One row per task, split, subset, layer and readout; an undefined readout has no score."""
    rows = []
    for result in results:
        if result["status"] == "failed":
            continue
        place = {k: result[k] for k in ("task", "layer", "site", *READOUT_COLUMNS)}
        place["depth"] = result["layer"] / n_blocks
        for entry in result["scores"]:
            facts = {"task_type": result["task_type"], "metric": result["metric"]}
            value = math.nan if entry["score"] is None else entry["score"]
            rows.append({**place, **facts, "split": entry["split"], "subset": entry["subset"], "score": value})
    table = pd.DataFrame(rows, columns=SCORE_COLUMNS)
    return table.sort_values(["task", *READOUT_COLUMNS, "split", "subset", "layer"], ignore_index=True)


def gain_table(scene: Scene, jobs: Sequence[Job], scores: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """For every task and readout: each layer's gain over the last, on the same resampled items, and which tie for best."""
    by_place = {(job.task.name, *asdict(job.readout).values(), job.layer): job for job in jobs}
    rows = []
    known = scores.dropna(subset=["score"])
    for key, group in known.groupby(["task", "split", "subset", *READOUT_COLUMNS], sort=False):
        task, split, subset, *parts = (str(part) for part in key)
        by_layer = dict(zip(group["layer"], group["score"], strict=True))
        readout = Readout(*parts)
        found = {layer: read_items(scene, by_place[task, *asdict(readout).values(), layer], split, subset) for layer in by_layer}
        held = {layer: items for layer, items in found.items() if items is not None}
        last = max(by_layer)
        drawn = {}
        if last in held and same_items(list(held.values())):
            drawn = resampled(held, seed)
        gained = gains(by_layer, drawn, last) if drawn else {}
        tied = set(tied_best(by_layer, drawn)) if drawn else {max(by_layer, key=lambda k: by_layer[k])}
        for layer, site in zip(group["layer"], group["site"], strict=True):
            gain = gained.get(layer)
            low, high = (gain.low, gain.high) if gain else (math.nan, math.nan)
            values = [by_layer[layer], by_layer[layer] - by_layer[last], low, high, layer in tied]
            rows.append([task, split, subset, *parts, layer, site, *values])
    return pd.DataFrame(rows, columns=GAIN_COLUMNS)
