"""How metrics go with scores in the runs of a report: within a model's tasks, over its tasks, and
over models.

The nulls and the numbers are those of `layerscope.correlate` (see `correlation.maths` and
`correlation.pooled`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.sites import whole_layers
from layerscope.core.statistics import Array, min_p
from layerscope.correlation.maths import (
    NULLS,
    Chance,
    compare_with,
    null_values,
    surrogate_curves,
    undefined_because,
)
from layerscope.correlation.pooled import (
    FEWEST_FAMILIES,
    ModelCorrelations,
    TaskPool,
    largest,
    over_models,
)
from layerscope.correlation.study import MIN_LAYERS
from layerscope.report.notices import same_model
from layerscope.report.sources import Curves, Scores

MEAN = "mean over tasks"
CHANCE_SAYS = (
    "Band: what unrelated curves as smooth as these reach in 95 % of cases "
    "(random phase or permuted increments, whichever is wider). "
    "Thick: beyond chance by both, corrected for all metrics"
)
OVER_COLUMNS = ["readout", "metric", "sink", "value", "chance", "p", "z", "layers", "tasks"]

Key = tuple[str, str]  # metric and sink
Pools = dict[tuple[Key, bytes], TaskPool]


@dataclass
class PairCorrelations:
    """Spearman's ρ of metrics and scores: a row per readout, task, metric and sink setting.

    `chance` is what unrelated curves as smooth as these reach in 95 % of cases; `p` is adjusted for
    the number of metrics. `over_tasks` has the mean of the tasks' own correlations, compared with
    surrogates that are drawn for all tasks together.
    """

    curves: int
    scores: int
    table: pd.DataFrame
    over_tasks: pd.DataFrame
    says: str = CHANCE_SAYS


def correlate(curves: Sequence[Curves], scores: Sequence[Scores]) -> list[PairCorrelations]:
    """Every profile with every evaluation of the same model."""
    return [
        PairCorrelations(c, s, *_tables(curve, score))
        for s, score in enumerate(scores)
        for c, curve in enumerate(curves)
        if same_model(curve, score)
    ]


def across_models(
    curves: Sequence[Curves], scores: Sequence[Scores], pairs: Sequence[PairCorrelations]
) -> ModelCorrelations | None:
    """The test over families of models, of each model's reference readout; None where the report
    has too few families."""
    found: dict[str, Any] = {}
    families: dict[str, str] = {}
    for pair in pairs:
        model = curves[pair.curves].model
        own = pair.over_tasks[pair.over_tasks["readout"] == scores[pair.scores].reference]
        if model not in found and not own.empty:
            kept = own[
                (own["sink"] == "keep")
                | ~own["metric"].isin(own.loc[own["sink"] == "keep", "metric"])
            ]
            found[model] = SimpleNamespace(
                over_tasks=kept.drop_duplicates("metric").assign(measure="spearman")
            )
            families[model] = str(curves[pair.curves].family)
    return over_models(found, families) if len(set(families.values())) >= FEWEST_FAMILIES else None


def _tables(curve: Curves, score: Scores) -> tuple[pd.DataFrame, pd.DataFrame]:
    layers = whole_layers(curve.table[curve.table["normalization"] == "raw"])
    common = sorted(set(layers["layer"]) & set(score.table["layer"]))
    metrics = {
        (str(metric), str(sink)): rows.drop_duplicates("layer")
        .set_index("layer")["value"]
        .reindex(common)
        .to_numpy(float)
        for (metric, sink), rows in layers.groupby(["metric", "sink"], sort=False)
    }
    rows, over = [], []
    for readout in score.readouts:
        grid = score.grid(readout)
        targets = {MEAN: score.mean(readout)} if len(grid) > 1 else {}
        if not curve.mean_only:
            targets |= {str(task): values for task, values in grid.T.items()}
        pools: Pools = {}
        for task, values in targets.items():
            own = None if task == MEAN else pools
            compared = compare(metrics, values.reindex(common).to_numpy(float), own)
            rows += [
                [readout, task, metric, sink, *compared[metric, sink]] for metric, sink in metrics
            ]
        over += [{"readout": readout, **row} for row in _pooled(metrics, pools)]
    columns = ["readout", "task", "metric", "sink", "rho", "chance", "p", "n"]
    return pd.DataFrame(rows, columns=columns), pd.DataFrame(over, columns=OVER_COLUMNS)


def compare(
    metrics: Mapping[Key, Array], target: Array, pools: Pools | None = None
) -> dict[Key, tuple[float, float, float, int]]:
    """(ρ, chance, p for all metrics, layers used) of every metric with one curve of scores; not a
    number where it is undefined.

    `pools` takes up what each metric and its surrogates gave. Surrogates come from one seed, so
    that those of several tasks at the same layers have the same phases and the same order of steps:
    added up draw by draw they were drawn together.
    """
    used = {key: np.isfinite(values) & np.isfinite(target) for key, values in metrics.items()}
    out = {key: (math.nan, math.nan, math.nan, int(mask.sum())) for key, mask in used.items()}
    groups: dict[bytes, list[Key]] = {}
    for key, mask in used.items():
        if undefined_because(metrics[key][mask], target[mask], MIN_LAYERS) is None:
            groups.setdefault(mask.tobytes(), []).append(key)
    compared: dict[Key, tuple[float, Chance]] = {}
    drawn_for: dict[Key, tuple[float, dict[str, Array]]] = {}
    for name, keys in groups.items():
        mask = used[keys[0]]
        xs, y = np.stack([metrics[key][mask] for key in keys]), target[mask]
        values = null_values("spearman", xs, y[None])[:, 0]
        nulls = {
            kind: null_values("spearman", xs, drawn) for kind, drawn in surrogate_curves(y).items()
        }
        chances = compare_with("spearman", values, nulls)
        compared |= {
            key: (float(value), chance)
            for key, value, chance in zip(keys, values, chances, strict=True)
        }
        for k, key in enumerate(keys):
            drawn_for[key] = float(values[k]), {kind: null[k] for kind, null in nulls.items()}
            if pools is not None:
                pools.setdefault((key, name), TaskPool(len(y))).add(*drawn_for[key])
    for key, p in _by_family(metrics, drawn_for).items():
        value, chance = compared[key]
        out[key] = (value, chance.limit, p, out[key][3])
    return out


def _by_family(
    metrics: Mapping[Key, Array], found: Mapping[Key, tuple[float, Mapping[str, Array]]]
) -> dict[Key, float]:
    """p corrected for all metrics by their common draws, from each one's value and its surrogates'.

    A family is every metric under one setting of the sink; metrics that know no sink are in both,
    and adjusted with `keep`.
    """
    out: dict[Key, float] = {}
    for sink in ("drop", "keep"):
        has_it = {metric for metric, own in metrics if own == sink}
        family = [key for key in found if key[1] == sink or key[0] not in has_it]
        if family:
            value = np.abs([found[key][0] for key in family])
            by_null = [
                min_p(value, np.abs(np.stack([found[key][1][kind] for key in family])))
                for kind in NULLS
            ]
            out |= dict(zip(family, np.max(by_null, axis=0).tolist(), strict=True))
    return out


def _pooled(metrics: Mapping[Key, Array], pools: Pools) -> list[dict[str, Any]]:
    """A row per metric that has several tasks."""
    rows, drawn = {}, {}
    for key in metrics:
        best = largest([pool for (mine, _), pool in pools.items() if mine == key])
        if best is not None:
            rows[key] = best.row(key[0], "spearman")
            drawn[key] = (
                rows[key]["value"],
                {kind: total / best.tasks for kind, total in best.nulls.items()},
            )
    adjusted = _by_family(metrics, drawn)
    return [
        {"metric": metric, "sink": sink, "value": row["value"], "chance": row["null_95"], "p": adjusted[metric, sink],
         "z": row["z"], "layers": row["layers"], "tasks": row["tasks"]}
        for (metric, sink), row in rows.items()
    ]  # fmt: skip
