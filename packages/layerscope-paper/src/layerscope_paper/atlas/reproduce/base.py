"""Rows with verdicts, charts, published curves and measures of their shape, for all tables and
figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.charts import Chart, Line
from layerscope.core.statistics import LEAST_SHARE, Array, find_valley, spearman
from layerscope_paper.atlas.queries import metric_values, select_scores
from layerscope_paper.correlation import same_tasks

NO_SCORES = "none: uses no scores"


ENOUGH_POWER = 0.8
"""A claim that a test of less power did not find is "not shown" rather than "not supported"."""


@dataclass(frozen=True)
class Row:
    """A number of the paper beside ours; `holds` if the paper's claim about it is true.

    `printed` is None where the paper shows a curve or a claim in words, but no number; `ours` where
    nothing was published to check it with. `power` is that of the test behind `holds`: the share of
    true claims that it finds, or None if unknown. The item of a row fills in `item` and
    `convention`.
    """

    model: str
    column: str
    ours: float | None
    holds: bool
    note: str
    tasks: int | None = None
    printed: float | None = None
    item: str = ""
    convention: str = NO_SCORES
    power: float | None = 1.0

    @property
    def verdict(self) -> str:
        """The verdict in words: "not shown" where a test was too weak to find a true claim."""
        if self.ours is None:
            return "cannot be checked"
        if self.holds:
            return "supported"
        strong = self.power is not None and self.power >= ENOUGH_POWER
        return "not supported" if strong else "not shown"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        names = (
            "item",
            "model",
            "column",
            "printed",
            "ours",
            "tasks",
            "convention",
            "verdict",
            "note",
        )
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper. A new one is a new file in this folder with `ITEMS` in it."""

    name: str
    title: str
    claim: str  # what the paper says, in our words
    find: Callable[[str], Iterable[Row]]
    charts: Callable[[str], list[Chart]]
    uses_scores: bool = True

    def rows(self, convention: str) -> list[Row]:
        """Return its rows under a convention."""
        return [
            replace(row, item=self.name, convention=convention) for row in self.find(convention)
        ]


TITLES = {
    "entropy_prompt": "prompt entropy (nats)",
    "entropy_sentence": "prompt entropy, older code (nats)",
    "entropy_dataset": "dataset entropy (nats)",
    "curvature": "curvature (absolute cosine, radians)",
    "infonce": "InfoNCE",
    "lidar": "LiDAR (entropy, nats)",
    "dime": "DiME (nats)",
    "intrinsic_dimension": "intrinsic dimension",
}


ABSOLUTE = "curvature"
SIGNED = "curvature[signed]"
ESTIMATED = "π − the published value, exact where every angle is obtuse"


def curve(model: str, metric: str, dataset: str = "wikitext") -> Array:
    """Return a metric's published values from the first layer to the last.

    The published curvature is the released code's, of the absolute cosine. `SIGNED` is the paper's
    formula, estimated from it: nearly all angles between steps are obtuse, and π minus the one is
    close to the other (curvature_conventions.csv).
    """
    if metric == SIGNED:
        return math.pi - curve(model, ABSOLUTE, dataset)
    return metric_values(model, dataset, metric)["value"].to_numpy(float)


def named(metric: str) -> str:
    """Return the metric's name with its convention, where there are two.

    >>> named("curvature"), named("lidar")
    ('curvature[absolute]', 'lidar')
    """
    return "curvature[absolute]" if metric == ABSOLUTE else metric


DEPTH = "depth (layer / blocks)"


def metric_charts(
    metrics: Sequence[str],
    models: Mapping[str, str] | Sequence[str],
    dataset: str = "wikitext",
    ordered: bool = False,
) -> list[Chart]:
    """Return a chart per metric: several models (or labels of models) against depth."""
    by_label = models if isinstance(models, Mapping) else {model: model for model in models}
    charts = []
    for metric in metrics:
        lines = [
            Line.of(label, metric_values(model, dataset, metric), x="depth")
            for label, model in by_label.items()
        ]
        charts.append(Chart(TITLES[metric], lines, x=DEPTH, ordered=ordered))
    return charts


def score_means(model: str, convention: str, fair: bool = False) -> pd.DataFrame:
    """Return, per layer, over the tasks present there (`fair`: the same at every layer): layer,
    depth, tasks, score × 100."""
    table = select_scores(model, convention)
    groups = (same_tasks(table) if fair else table).groupby("layer", as_index=False)
    means = groups.agg(depth=("depth", "first"), tasks=("task", "nunique"), score=("score", "mean"))
    return means.assign(score=100 * means["score"])


def highest(table: pd.DataFrame, column: str) -> pd.Series:
    """Return the row with the highest value of a column, the first of equals."""
    return table.iloc[int(table[column].to_numpy(float).argmax())]


def spread(values: Array) -> float:
    """Return highest minus lowest before the last layer, which alone has the final norm."""
    return float(np.ptp(values[:-1]))


def valley(values: Array) -> tuple[int, float, bool]:
    """Return the layer of the deepest dip, its depth below the lower of its two shoulders, and True
    if it is deep enough for a valley."""
    dip = find_valley(values)
    assert dip is not None, "the atlas has every layer of these curves"
    return dip.place, dip.depth.value, dip.clear


def valley_words(values: Array) -> str:
    """Describe the dip: its depth as a share of its shoulder, and its layer."""
    dip = find_valley(values)
    assert dip is not None, "the atlas has every layer of these curves"
    remark = "" if dip.clear else f", too little for a valley (at least {LEAST_SHARE:.0%})"
    return (
        f"nats below the lower shoulder: {dip.share:.1%} of it{remark}; deepest at layer "
        f"{dip.place} of {len(values) - 1}"
    )


def middle(values: Array) -> Array:
    """Return the values of the middle third of the depth."""
    n = len(values) - 1
    return values[int(np.ceil(n / 3)) : int(np.floor(2 * n / 3)) + 1]


def trend(values: Sequence[float]) -> float:
    """Return Spearman's ρ of a sequence with its order: 1 if it always rises."""
    return float(spearman(np.arange(len(values), dtype=float), np.asarray(values, float)))
