"""The shipped tables, read once. What callers get are copies."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

DATA = Path(__file__).parent / "data"


@cache
def coded(name: str) -> pd.DataFrame:
    """One table as stored, its text dictionary-coded: quick to filter. Shared by all callers, so never to be changed."""
    return pd.read_parquet(DATA / f"{name}.parquet")


@cache
def _readable(name: str) -> pd.DataFrame:
    return as_text(coded(name))


def as_text(table: pd.DataFrame) -> pd.DataFrame:
    """The same table with plain text in place of categories, whose unused levels surprise in a groupby."""
    text = {c: table[c].astype(table[c].cat.categories.dtype) for c in table.columns if table[c].dtype == "category"}
    return table.assign(**text)


def scores() -> pd.DataFrame:
    """Every published MTEB score: model, layer, task, split, subset, main_score (0 to 1)."""
    return _readable("scores").copy()


def metrics() -> pd.DataFrame:
    """Every published metric value: model, dataset, split, metric, normalization, layer, value."""
    return _readable("metrics").copy()


def vision() -> pd.DataFrame:
    """Every number of the published image probes: model, layers, metric, value (accuracies in percent)."""
    return _readable("vision").copy()


def tasks() -> pd.DataFrame:
    """The 32 MTEB tasks and the name of each one's dataset in `metrics()`."""
    return _readable("tasks").copy()


def problems() -> pd.DataFrame:
    """Source files that had a defect or were left out, and why."""
    return _readable("problems").copy()
