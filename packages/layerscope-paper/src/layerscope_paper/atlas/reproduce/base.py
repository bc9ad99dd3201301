"""What the tables and figures share: rows with verdicts, charts to draw, published curves and facts
about their shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.charts import Chart, Line
from layerscope.core.statistics import Array, spearman
from layerscope.core.valley import LEAST_SHARE, find_valley
from layerscope_paper.atlas.queries import metric_values, select_scores
from layerscope_paper.correlation import same_tasks

NO_SCORES = "none: uses no scores"


ENOUGH = 0.8
"""The power of a test below which a claim that it did not find is not shown rather than not
supported."""


@dataclass(frozen=True)
class Row:
    """One number of the paper beside ours, and whether what the paper says of it holds.

    `printed` is None where the paper shows a curve or a claim in words, but no number; `ours` where
    nothing was published to check it with. The item that a row belongs to fills in `item` and
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
    power: float | None = (
        1.0  # of the test behind `holds`: how often it finds a true claim; None: not known
    )

    @property
    def verdict(self) -> str:
        """In words. A claim that a test did not find, and could not well have found, is "not
        shown": no verdict against it."""
        if self.ours is None or self.holds:
            return "cannot be checked" if self.ours is None else "supported"
        return "not supported" if self.power is not None and self.power >= ENOUGH else "not shown"

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
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
    """A table or figure of the paper. A new one is a new file in this folder with `ITEM` (or
    `ITEMS`) in it."""

    name: str
    title: str
    claim: str  # what the paper says, in our words
    find: Callable[[str], Iterable[Row]]
    charts: Callable[[str], list[Chart]]
    uses_scores: bool = True

    def rows(self, convention: str) -> list[Row]:
        """What is found under a convention."""
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
    """A metric's published values from the first layer to the last.

    The published curvature is the released code's, of the absolute cosine. `SIGNED` is the paper's
    formula, estimated from it: nearly all angles between steps are obtuse, and π minus the one is
    close to the other (curvature_conventions.csv).
    """
    if metric == SIGNED:
        return math.pi - curve(model, ABSOLUTE, dataset)
    return metric_values(model, dataset, metric)["value"].to_numpy(float)


def named(metric: str) -> str:
    """The metric's name with its convention, where there are two.

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
    """A chart per metric: several models (or labels of models) against depth."""
    named = models if isinstance(models, Mapping) else {model: model for model in models}
    charts = []
    for metric in metrics:
        lines = [
            Line.of(label, metric_values(model, dataset, metric), x="depth")
            for label, model in named.items()
        ]
        charts.append(Chart(TITLES[metric], lines, x=DEPTH, ordered=ordered))
    return charts


def score_means(model: str, convention: str, fair: bool = False) -> pd.DataFrame:
    """Per layer, over the tasks present there (`fair`: the same at every layer): layer, depth,
    tasks, score × 100."""
    table = select_scores(model, convention)
    groups = (same_tasks(table) if fair else table).groupby("layer", as_index=False)
    means = groups.agg(depth=("depth", "first"), tasks=("task", "nunique"), score=("score", "mean"))
    return means.assign(score=100 * means["score"])


def highest(table: pd.DataFrame, column: str) -> pd.Series:
    """The row with the highest value of a column, the first of equals."""
    return table.iloc[int(table[column].to_numpy(float).argmax())]


def spread(values: Array) -> float:
    """Highest minus lowest before the last layer, which alone has the final norm."""
    return float(np.ptp(values[:-1]))


def valley(values: Array) -> tuple[int, float, bool]:
    """The layer of the deepest dip, how far it lies below the lower of its two shoulders, and
    whether that is a valley."""
    found = find_valley(values)
    assert found is not None, "the atlas has every layer of these curves"
    return found.place, found.depth.value, found.clear


def valley_words(values: Array) -> str:
    """The dip in words: how deep as a share of its shoulder, and where."""
    found = find_valley(values)
    assert found is not None, "the atlas has every layer of these curves"
    called = "" if found.clear else f", too little for a valley (at least {LEAST_SHARE:.0%})"
    return (
        f"nats below the lower shoulder: {found.share:.1%} of it{called}; deepest at layer "
        f"{found.place} of {len(values) - 1}"
    )


def middle(values: Array) -> Array:
    """The middle third of the depth."""
    n = len(values) - 1
    return values[int(np.ceil(n / 3)) : int(np.floor(2 * n / 3)) + 1]


def trend(values: Sequence[float]) -> float:
    """Spearman's ρ of a sequence with its order: 1 if it always rises."""
    return float(spearman(np.arange(len(values), dtype=float), np.asarray(values, float)))
