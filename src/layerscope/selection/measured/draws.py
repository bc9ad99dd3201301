"""Scores of every candidate on the same resamples of each task's items, from an evaluation's folder."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from layerscope.core.readout import readout_names
from layerscope.evaluation.uncertainty import Items, resampled, same_items

RESAMPLES = 200
_WIDTH = 2 * 1.959964  # standard deviations in a 95 % interval
Candidate = tuple[str, int]  # readout, layer
Entry = tuple[str, str, str]  # task, split, subset


def with_readout(gains: pd.DataFrame) -> pd.DataFrame:
    """The table with a column that names the readout."""
    return gains.assign(readout=pd.Series(readout_names(gains), index=gains.index, dtype=object))


def task_draws(
    entry: Entry, rows: pd.DataFrame, candidates: list[Candidate], items: dict[Candidate, Items], seed: int
) -> tuple[np.ndarray, bool]:
    """Deviations of each candidate's score from its own value (resamples × candidates), and whether they are paired.

    Without stored items they are drawn from the intervals of the gains, each candidate by itself, which is too careful.
    """
    scores = rows.set_index(["readout", "layer"])["score"]
    if all(c in items for c in candidates) and same_items([items[c] for c in candidates]):
        drawn = resampled({i: items[c] for i, c in enumerate(candidates)}, seed, RESAMPLES)
        table = np.column_stack([drawn[i] for i in range(len(candidates))])
        point = np.array([items[c].score() for c in candidates])
        return np.nan_to_num(table - point), True
    wide = (rows.set_index(["readout", "layer"])["ci_high"] - rows.set_index(["readout", "layer"])["ci_low"]) / _WIDTH
    sd = np.nan_to_num(np.array([float(wide.get(c, math.nan)) for c in candidates]))
    assert len(scores) >= len(candidates)
    noise = np.random.default_rng([seed, len("/".join(entry))]).standard_normal((RESAMPLES, len(candidates)))
    return noise * sd, False
