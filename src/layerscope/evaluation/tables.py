"""From job results to tables: scores, and gains over the last layer with the layers that tie for best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.readout import READOUT_COLUMNS, Readout
from layerscope.evaluation.score import Job, Scene, read_items
from layerscope.evaluation.uncertainty import gains, resampled, same_items, tied_best

SCORE_COLUMNS = ["task", "task_type", "split", "subset", "metric", "template", "layer", "site", "depth"]
SCORE_COLUMNS += ["final_norm", "pooling", "sink", "centering", "score"]
GAIN_COLUMNS = ["task", "split", "subset", *READOUT_COLUMNS, "layer", "site", "score", "gain", "ci_low", "ci_high", "tied_best"]
# against the last layer under the default readout, which is what a user who changes nothing has
GAIN_COLUMNS += ["gain_over_default", "default_ci_low", "default_ci_high"]


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
    """For every task and readout: each layer's gain over the last of the same readout, and over the last of the default one.

    Both on the same resampled items, with the layers that tie for best.
    """
    by_place = {(job.task.name, *job.readout.columns.values(), job.layer): job for job in jobs}
    rows = []
    known = scores.dropna(subset=["score"])
    for (task, split, subset), of_task in known.groupby(["task", "split", "subset"], sort=False):
        default = None
        parts_of = {Readout(*(str(p) for p in key)): group for key, group in of_task.groupby(READOUT_COLUMNS, sort=False)}
        for readout, group in sorted(parts_of.items(), key=lambda item: item[0] != Readout()):  # the default first
            by_layer = dict(zip(group["layer"], group["score"], strict=True))
            place = [str(task), *readout.columns.values()]
            found = {layer: read_items(scene, by_place[*place, layer], str(split), str(subset)) for layer in by_layer}
            held = {layer: items for layer, items in found.items() if items is not None}
            last = max(by_layer)
            drawn = resampled(held, seed) if last in held and same_items(list(held.values())) else {}
            if readout == Readout():
                default = (by_layer[last], drawn.get(last))
            gained = gains(by_layer, drawn, last) if drawn else {}
            tied = set(tied_best(by_layer, drawn)) if drawn else {max(by_layer, key=lambda k: by_layer[k])}
            for layer, site in zip(group["layer"], group["site"], strict=True):
                gain = gained.get(layer)
                low, high = (gain.low, gain.high) if gain else (math.nan, math.nan)
                values = [by_layer[layer], by_layer[layer] - by_layer[last], low, high, layer in tied]
                over = _over_default(by_layer[layer], drawn.get(layer), default)
                rows.append([task, split, subset, *place[1:], layer, site, *values, *over])
    return pd.DataFrame(rows, columns=GAIN_COLUMNS).sort_values(
        ["task", "split", "subset", *READOUT_COLUMNS, "layer"], ignore_index=True
    )


def _over_default(
    score: float, drawn: np.ndarray | None, default: tuple[float, np.ndarray | None] | None
) -> tuple[float, float, float]:
    """Gain over the default readout's last layer and its interval: resamples are the same for every readout of a task."""
    if default is None:
        return math.nan, math.nan, math.nan
    value, draws = default
    if drawn is None or draws is None or len(drawn) != len(draws):
        return score - value, math.nan, math.nan
    low, high = np.nanquantile(drawn - draws, [0.025, 0.975])
    return score - value, float(low), float(high)
