"""Inference over the tasks of one model, and over models.

**Over tasks.** The tasks of a model are not independent trials: all are read from the same layers,
and their curves are alike. The mean of the tasks' correlations is therefore compared with the same
mean under surrogates that are drawn for all tasks together and leave them as alike as they are
(`maths.surrogate_curves`). This tests whether the metric goes with the scores *in this model*.

**Over models.** Only models are independent trials, and models of one family are not. Each model
gives one number per metric: the place of its mean correlation among its surrogates, as a normal
score z. Under either null z has mean 0, whatever the number of layers and the smoothness; of the
two nulls the z nearer to zero counts. A t-test over families (the mean z of each family's models is
one observation) then tests whether z differs from 0 *in models like these*: two-sided for signed
measures, upwards for distance correlation. Holm's correction is over the metrics, for each measure.
(Over tasks, and over the layer means, metrics are corrected by their common draws: `min_p`.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtr

from layerscope.core.statistics import Array
from layerscope_paper.correlation import maths
from layerscope_paper.correlation.adjust import holm, min_p

FEWEST_TASKS = 2
FEWEST_FAMILIES = 3  # a t-test over two has one degree of freedom
# of normal scores: those beyond every surrogate are equal, which says nothing about how models vary
LEAST_SPREAD = 0.25

TASK_COLUMNS = [
    "metric",
    "measure",
    "value",
    "p",
    "p_adjusted",
    "p_phase",
    "p_increments",
    "z",
    "null_mean",
    "null_95",
    "layers",
    "tasks",
]
MODEL_COLUMNS = [
    "metric",
    "measure",
    "value",
    "z",
    "t",
    "p",
    "p_adjusted",
    "same_sign",
    "models",
    "families",
]


@dataclass
class TaskPool:
    """Sums over the tasks of one metric and measure that are known at the same layers."""

    layers: int
    tasks: int = 0
    value: float = 0.0
    nulls: dict[str, Array] = field(default_factory=dict)

    def add(self, value: float, nulls: Mapping[str, Array]) -> None:
        """Add a task: its correlation, and those of its surrogates, draw by draw."""
        self.tasks += 1
        self.value += value
        for name, drawn in nulls.items():
            self.nulls[name] = self.nulls[name] + drawn if name in self.nulls else drawn.copy()

    def row(self, metric: str, measure: str) -> dict[str, Any]:
        """Return the mean over tasks beside its values by chance."""
        mean = self.value / self.tasks
        nulls = {name: total[None] / self.tasks for name, total in self.nulls.items()}
        chance = maths.compare_with(measure, mean, nulls)[0]
        return {
            "metric": metric,
            "measure": measure,
            "value": mean,
            **chance.columns,
            "z": normal_score(
                mean, [null[0] for null in nulls.values()], maths.MEASURES[measure].signed
            ),
            "layers": self.layers,
            "tasks": self.tasks,
        }


def normal_score(value: float, nulls: list[Array], signed: bool) -> float:
    """Return a value's place among the draws of a null as a normal score: of several nulls, the
    score nearer to zero.

    Of a signed measure, scores of different signs cancel to 0. Of the others, the lowest counts.
    A value above all three draws has the place 3.5 of 4:

    >>> round(normal_score(3.0, [np.array([0.0, 1.0, 2.0])], True), 3)
    1.15
    """
    scores = []
    for drawn in nulls:
        below = float((drawn < value - 1e-12).sum() + 0.5 * (np.abs(drawn - value) <= 1e-12).sum())
        scores.append(NormalDist().inv_cdf((below + 0.5) / (len(drawn) + 1)))
    if not signed:
        return min(scores)
    return 0.0 if min(scores) < 0 < max(scores) else min(scores, key=abs)


def over_tasks(pools: Mapping[tuple[str, str], list[TaskPool]]) -> pd.DataFrame:
    """Return a row per metric and measure: the mean over tasks.

    Of several sets of layers, the one with the most tasks counts, if it has `FEWEST_TASKS`.
    """
    rows = []
    nulls = {}
    for key, by_layers in pools.items():
        largest = max(by_layers, key=lambda pool: (pool.tasks, pool.layers))
        if largest.tasks >= FEWEST_TASKS:
            rows.append(largest.row(*key))
            nulls[key] = {name: total / largest.tasks for name, total in largest.nulls.items()}
    return adjusted_together(pd.DataFrame(rows, columns=TASK_COLUMNS), nulls)


def adjusted_together(
    table: pd.DataFrame, nulls: Mapping[tuple[str, str], Mapping[str, Array]]
) -> pd.DataFrame:
    """Return the table with p corrected over the metrics of each measure by their common draws: the
    larger p of the two nulls."""
    for name, group in table.groupby("measure"):
        measure = maths.MEASURES[str(name)]
        by_metric = [nulls[str(metric), str(name)] for metric in group["metric"]]
        value = measure.strength(group["value"].to_numpy(float))
        by_null = [
            min_p(value, measure.strength(np.stack([draws[null] for draws in by_metric])))
            for null in maths.NULLS
        ]
        table.loc[group.index, "p_adjusted"] = np.max(by_null, axis=0)
    return table.astype({"p_adjusted": float})


def adjusted(table: pd.DataFrame, adjust: Callable[[Array], Array] = holm) -> pd.DataFrame:
    """Return the table with p corrected (by Holm's method) over the metrics of each measure."""
    for _, group in table.groupby("measure"):
        table.loc[group.index, "p_adjusted"] = adjust(group["p"].to_numpy(float))
    return table.astype({"p_adjusted": float})


def as_records(tables: Mapping[str, pd.DataFrame]) -> dict[str, list[dict[Any, Any]]]:
    """Return tables as plain values for JSON."""
    return {
        name: table.astype(object).where(table.notna(), None).to_dict(orient="records")
        for name, table in tables.items()
    }


@dataclass
class ModelCorrelations:
    """The result of `over_models`. `table` has a row per metric and measure, over families.

    `value` is the mean over families of the mean correlation over tasks, `z` the mean normal score,
    `t` and `p` the test that it is 0, `same_sign` the share of models whose z has the sign of the
    mean. `models` has the rows of the single models. `undefined` lists tests that are not possible,
    with the reason.
    """

    table: pd.DataFrame
    models: pd.DataFrame
    undefined: list[dict[str, str]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        tables = as_records({"over_models": self.table, "models": self.models})
        return {**tables, "undefined": self.undefined}


def over_models(
    correlations: Mapping[str, Any], families: Mapping[str, str] | None = None
) -> ModelCorrelations:
    """Test metrics over models, from the `Correlations` of each model.

    `families` names the family of each model (default: each is its own).
    """
    tables = [
        result.over_tasks.assign(model=name, family=(families or {}).get(name, name))
        for name, result in correlations.items()
        if not result.over_tasks.empty
    ]
    models = pd.DataFrame(columns=[*TASK_COLUMNS, "model", "family"])
    if tables:
        models = pd.concat(tables, ignore_index=True)
    rows = []
    undefined = []
    for (metric, measure), group in models.groupby(["metric", "measure"], sort=False):
        means = group.groupby("family")[["value", "z"]].mean()
        if len(means) < FEWEST_FAMILIES:
            reason = f"{len(means)} families of models, at least {FEWEST_FAMILIES} are needed"
            undefined.append({"metric": str(metric), "measure": str(measure), "reason": reason})
            continue
        z = means["z"].to_numpy(float)
        t, p = t_test(z, two_sided=maths.MEASURES[str(measure)].signed)
        rows.append(
            {
                "metric": metric,
                "measure": measure,
                "value": means["value"].mean(),
                "z": z.mean(),
                "t": t,
                "p": p,
                "same_sign": float((np.sign(group["z"]) == np.sign(z.mean())).mean()),
                "models": len(group),
                "families": len(means),
            }
        )
    return ModelCorrelations(adjusted(pd.DataFrame(rows, columns=MODEL_COLUMNS)), models, undefined)


def t_test(values: Array, two_sided: bool = True) -> tuple[float, float]:
    """Return Student's t of a mean normal score against 0, and its p-value: of both sides, or of a
    mean above 0.

    >>> t, p = t_test(np.array([1.0, 2.0, 3.0]))
    >>> round(t, 3), round(p, 4)
    (3.464, 0.0742)
    """
    spread = max(float(values.std(ddof=1)), LEAST_SPREAD)
    t = float(values.mean()) / (spread / math.sqrt(len(values)))
    above = 1 - float(stdtr(len(values) - 1, t))
    return t, min(1.0, 2 * min(above, 1 - above)) if two_sided else above
