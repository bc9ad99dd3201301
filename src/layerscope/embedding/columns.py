"""The columns that texts came with, as a parquet table that keeps every value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from layerscope.data.records import Row

_EXACT_DIGITS = 15
"""The digits of a decimal number that a 64-bit number keeps."""
_EXACT_INTEGER = 2**53
_MIXED = (pa.ArrowException, OverflowError, UnicodeError)
"""The errors of values that no type holds together."""


class OtherColumns:
    """The columns beside the texts, each with the type that keeps the values of all rows.

    Whole numbers beside decimals are written as decimals, and other mixtures as text. So are
    numbers that would lose digits: decimals of many digits, and large whole numbers beside
    decimals.
    """

    def __init__(self) -> None:
        self._types: dict[str, set[pa.DataType]] = {}
        self._with_decimals: set[str] = set()
        self._with_large: set[str] = set()
        self._with_long: set[str] = set()

    def add(self, rows: Sequence[Row]) -> None:
        """Take a block of rows into account."""
        for name in dict.fromkeys(name for row in rows for name in row.others):
            values = [row.others.get(name) for row in rows]
            for value in values:
                self._look(name, value)
            try:
                kind = pa.array(values).type
            except _MIXED:
                kind = pa.string()
            self._types.setdefault(name, set()).add(kind)

    def _look(self, name: str, value: Any) -> None:
        """Record which numbers a column holds, also inside lists and objects."""
        if isinstance(value, float):
            self._with_decimals.add(name)
            digits = str(value)  # a decimal that was read from JSON knows all its digits
            if digits != float.__repr__(value) and len(digits) > _EXACT_DIGITS:
                self._with_long.add(name)
        elif isinstance(value, int):
            if abs(value) > _EXACT_INTEGER:
                self._with_large.add(name)
        elif isinstance(value, Mapping | list):
            for inner in value.values() if isinstance(value, Mapping) else value:
                self._look(name, inner)

    def table(self, rows: Sequence[Row], vectors: Mapping[str, np.ndarray]) -> pa.Table:
        """Return a table of texts, their other columns and vectors.

        A column with a name that is needed here is called `…_given`.
        """
        columns: dict[str, Any] = {"text": pa.array([str(row.text) for row in rows])}
        for name in self._types:
            is_taken = re.sub("(_given)+$", "", str(name)) in ("text", *vectors)
            label = _encodable(f"{name}_given" if is_taken else name)
            columns[label] = _array([row.others.get(name) for row in rows], self._type(name))
        for name, matrix in vectors.items():
            flat = pa.array(np.ascontiguousarray(matrix, dtype=np.float32).reshape(-1))
            columns[name] = pa.FixedSizeListArray.from_arrays(flat, matrix.shape[1])
        return pa.table(columns)

    def _type(self, name: str) -> pa.DataType:
        types = self._types[name] - {pa.null()}
        if name in self._with_long or name in self._with_decimals & self._with_large:
            return pa.string()
        if len(types) <= 1:
            return types.pop() if types else pa.null()
        are_numbers = all(pa.types.is_integer(t) or pa.types.is_floating(t) for t in types)
        return pa.float64() if are_numbers and name not in self._with_large else pa.string()


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if kind == pa.string():
        return pa.array([None if value is None else _encodable(value) for value in values], kind)
    return pa.array(values, kind)


def _encodable(value: Any) -> str:
    """Return a value as text that can be encoded: half of a character is none."""
    return str(value).encode("utf-8", "replace").decode()
