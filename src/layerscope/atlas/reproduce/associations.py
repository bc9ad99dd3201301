"""Correlations of the published metrics with the published scores: what figures 3, 8 and 9 share."""

from __future__ import annotations

from functools import lru_cache

import pandas as pd

from layerscope.atlas.queries import correlation_tables
from layerscope.atlas.reproduce.base import Panel, Series
from layerscope.correlation import correlate

ORDER = ["entropy_prompt", "entropy_dataset", "curvature", "infonce", "lidar", "dime"]
SHORT = {
    "entropy_prompt": "prompt\nentropy",
    "entropy_dataset": "dataset\nentropy",
    "infonce": "InfoNCE",
    "lidar": "LiDAR",
    "dime": "DiME",
}


@lru_cache(maxsize=16)
def layer_correlations(model: str, convention: str, measures: tuple[str, ...]) -> pd.DataFrame:
    """One row per metric and measure: one point per layer, means over the same tasks. Not to be changed by callers."""
    tables = correlation_tables(model, convention, "mteb")
    return correlate(tables.metrics, tables.scores, measures=measures, within=False).layers


def pick(table: pd.DataFrame, metric: str, measure: str) -> pd.Series:
    """The row of one metric and measure."""
    return table[(table["metric"] == metric) & (table["measure"] == measure)].iloc[0]


def described(row: pd.Series) -> str:
    """Interval, chance level and p in words."""
    return (
        f"95 % [{row['ci_low']:.2f}, {row['ci_high']:.2f}]; independent data of {row['layers']} layers give "
        f"{row['null_mean']:.2f} (95 % below {row['null_95']:.2f}); p = {row['p']:.4f}, Holm {row['p_adjusted']:.4f}"
    )


def bars(model: str, convention: str, measure: str, title: str) -> Panel:
    """One bar per metric, its interval, and what chance gives."""
    table = layer_correlations(model, convention, (measure,) if measure == "dcor" else ("spearman", "kendall", "dcor"))
    found = [pick(table, metric, measure) for metric in ORDER]
    names = [SHORT.get(metric, metric) for metric in ORDER]
    series = Series(f"{model}, {convention}", names, [float(row["value"]) for row in found])
    whiskers = [(float(row["ci_low"]), float(row["ci_high"])) for row in found]
    level = max(float(row["null_95"]) for row in found)
    return Panel(title, "", "", [series], bars=True, whiskers=whiskers, level=(level, "95 % of independent data lie below"))
