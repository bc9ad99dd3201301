"""Tables: plain columns, extremes over layers, and layers down with what was measured across."""

from __future__ import annotations

from typing import Any

import pandas as pd

__all__ = ["lowest_and_highest", "pivot"]


def plain_columns(table: pd.DataFrame) -> pd.DataFrame:
    """A table without pandas' nullable columns, whose missing values cannot be compared; numbers
    with gaps become floats."""
    nullable = [
        name
        for name in table.columns
        if isinstance(table[name].dtype, pd.api.extensions.ExtensionDtype)
    ]
    changes: dict[Any, Any] = {}
    for name in nullable:
        column = table[name]
        if pd.api.types.is_bool_dtype(column.dtype) or not pd.api.types.is_numeric_dtype(
            column.dtype
        ):
            changes[name] = column.astype(object).where(column.notna(), None)
        else:
            changes[name] = column.astype(float) if column.isna().any() else column.to_numpy()
    return table.assign(**changes) if changes else table


def lowest_and_highest(layers: Any, values: Any) -> dict[str, dict[str, Any]]:
    """Where a curve over layers is lowest and highest; undefined values are left out; empty where
    all are undefined."""
    known = [
        (float(value), int(layer))
        for layer, value in zip(layers, values, strict=True)
        if value == value
    ]
    if not known:
        return {}
    ends = {
        "lowest": min(known, key=lambda point: point[0]),
        "highest": max(known, key=lambda point: point[0]),
    }
    return {name: {"layer": layer, "value": value} for name, (value, layer) in ends.items()}


def pivot(
    rows: pd.DataFrame, column: str | list[str], index: str = "layer", value: str = "value"
) -> pd.DataFrame:
    """A tidy table as a wide one; the columns keep the order in which they first come."""
    table = rows.pivot_table(index=index, columns=column, values=value, aggfunc="first", sort=False)
    return table.sort_index()
