"""Comparing tables of two profiles."""

from __future__ import annotations

import numpy as np
import pandas as pd

PLACE = ["site", "layer", "depth", "metric", "normalization", "sink"]


def assert_same_numbers(one: pd.DataFrame, other: pd.DataFrame, tolerance: float = 1e-4) -> None:
    """The same rows in the same order, with values, intervals and counts within a relative
    tolerance."""
    pd.testing.assert_frame_equal(one[PLACE], other[PLACE])
    assert (one["n"] == other["n"]).all()
    for column in ("value", "ci_low", "ci_high"):
        a, b = one[column].to_numpy(), other[column].to_numpy()
        assert (np.isnan(a) == np.isnan(b)).all()
        # an end of an interval is as large as the value it belongs to: near zero it has no digits
        # of its own
        size = np.nan_to_num(np.maximum(np.abs(one["value"]), np.abs(one[column])))
        off = np.nan_to_num(np.abs(a - b)) > tolerance * np.maximum(size, 1e-2)
        assert not off.any(), f"{column}\n{one[off]}\n{other[off]}"
