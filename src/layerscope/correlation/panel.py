"""Means over tasks that compare like with like: the same tasks at every layer."""

from __future__ import annotations

import pandas as pd

MIN_SHARE = 0.6  # a layer takes part if at least this share of the tasks was scored there


def same_tasks(table: pd.DataFrame, min_share: float = MIN_SHARE) -> pd.DataFrame:
    """The rows of layers with at least `min_share` of the tasks, and of tasks present at all of those layers.

    `table` has `task` and `layer`. A mean over "whatever tasks are there" moves when a hard task is missing; this one does not.
    """
    present = table.groupby("layer")["task"].nunique()
    layers = present.index[present >= min_share * table["task"].nunique()]
    kept = table[table["layer"].isin(layers)]
    count = kept.groupby("task")["layer"].nunique()
    return kept[kept["task"].isin(count.index[count == len(layers)])]


def mean_by_layer(table: pd.DataFrame, value: str) -> pd.Series:
    """Mean over tasks at every layer, on the same tasks."""
    return same_tasks(table).groupby("layer")[value].mean()
