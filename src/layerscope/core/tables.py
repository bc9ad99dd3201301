"""Tables: plain columns, extremes over layers, and layers down with what was measured across."""

from __future__ import annotations

from typing import Any

import pandas as pd

__all__ = ["lowest_and_highest", "pivot"]


def lowest_and_highest(layers: Any, values: Any) -> dict[str, dict[str, Any]]:
    """Return where a curve over layers is lowest and highest; undefined values are left out; empty where
    all are undefined."""
    points = [
        (float(value), int(layer))
        for layer, value in zip(layers, values, strict=True)
        if value == value
    ]
    if not points:
        return {}
    ends = {
        "lowest": min(points, key=lambda point: point[0]),
        "highest": max(points, key=lambda point: point[0]),
    }
    return {name: {"layer": layer, "value": value} for name, (value, layer) in ends.items()}


def pivot(
    rows: pd.DataFrame, column: str | list[str], index: str = "layer", value: str = "value"
) -> pd.DataFrame:
    """Return a tidy table as a wide one; the columns keep the order in which they first come."""
    table = rows.pivot_table(index=index, columns=column, values=value, aggfunc="first", sort=False)
    return table.sort_index()
