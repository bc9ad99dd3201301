"""How each metric goes with the score over the layers of one model, by the same measure and the same null as `correlate`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from layerscope.core.sites import whole_layers
from layerscope.core.statistics import Array, holm
from layerscope.correlation.maths import Chance, against_chance, null_values, surrogate_curves, undefined_because
from layerscope.correlation.study import MIN_LAYERS
from layerscope.report.notices import same_model
from layerscope.report.sources import Curves, Scores

MEAN = "mean over tasks"
CHANCE_SAYS = (
    "Band: what unrelated curves as smooth as these reach in 95 % of cases (random phase or permuted increments, the wider). "
    "Thick: beyond chance by both, after Holm's correction over the metrics"
)


@dataclass
class Correlations:
    """Spearman's ρ of metrics and scores: a row per readout, task, metric and sink setting.

    `chance` is what unrelated curves as smooth as these reach in 95 % of cases; `p` is adjusted for the number of metrics.
    """

    curves: int
    scores: int
    table: pd.DataFrame
    says: str = CHANCE_SAYS


def correlate(curves: Sequence[Curves], scores: Sequence[Scores]) -> list[Correlations]:
    """Every profile with every evaluation of the same model."""
    return [
        Correlations(c, s, _table(curve, score))
        for s, score in enumerate(scores)
        for c, curve in enumerate(curves)
        if same_model(curve, score)
    ]


def _table(curve: Curves, score: Scores) -> pd.DataFrame:
    layers = whole_layers(curve.table[curve.table["normalization"] == "raw"])
    common = sorted(set(layers["layer"]) & set(score.table["layer"]))
    metrics = {
        (str(metric), str(sink)): rows.drop_duplicates("layer").set_index("layer")["value"].reindex(common).to_numpy(float)
        for (metric, sink), rows in layers.groupby(["metric", "sink"], sort=False)
    }
    rows = []
    for readout in score.readouts:
        grid = score.grid(readout)
        targets = {MEAN: score.mean(readout)} if len(grid) > 1 else {}
        if not curve.mean_only:
            targets |= {str(task): values for task, values in grid.T.items()}
        for task, values in targets.items():
            compared = _compare(metrics, values.reindex(common).to_numpy(float))
            rows += [[readout, task, metric, sink, *compared[metric, sink]] for metric, sink in metrics]
    return pd.DataFrame(rows, columns=["readout", "task", "metric", "sink", "rho", "chance", "p", "n"])


def _compare(metrics: Mapping[tuple[str, str], Array], target: Array) -> dict[tuple[str, str], tuple[float, float, float, int]]:
    """(ρ, chance, Holm's p, layers used) of every metric with one curve of scores; not a number where it is undefined."""
    used = {key: np.isfinite(values) & np.isfinite(target) for key, values in metrics.items()}
    out = {key: (math.nan, math.nan, math.nan, int(mask.sum())) for key, mask in used.items()}
    groups: dict[bytes, list[tuple[str, str]]] = {}
    for key, mask in used.items():
        if undefined_because(metrics[key][mask], target[mask], MIN_LAYERS) is None:
            groups.setdefault(mask.tobytes(), []).append(key)
    found: dict[tuple[str, str], tuple[float, Chance]] = {}
    for keys in groups.values():
        mask = used[keys[0]]
        xs, y = np.stack([metrics[key][mask] for key in keys]), target[mask]
        values = null_values("spearman", xs, y[None])[:, 0]
        chances = against_chance("spearman", values, xs, surrogate_curves(y))
        found |= {key: (float(value), chance) for key, value, chance in zip(keys, values, chances, strict=True)}
    # a family is every metric under one setting of the sink; metrics that know no sink are in both, and adjusted with `keep`
    for sink in ("drop", "keep"):
        has_it = {metric for metric, own in metrics if own == sink}
        family = [key for key in found if key[1] == sink or key[0] not in has_it]
        adjusted = holm(np.array([found[key][1].p for key in family]))
        for key, p in zip(family, adjusted, strict=True):
            value, chance = found[key]
            out[key] = (value, chance.limit, float(p), out[key][3])
    return out
