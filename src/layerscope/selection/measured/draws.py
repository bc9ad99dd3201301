"""Scores of every candidate on the same resamples of each task's items, from an evaluation's folder."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.readout import Readout, readout_names
from layerscope.evaluation.uncertainty import Items, resampled, same_items

RESAMPLES = 200
_WIDTH = 2 * 1.959964  # standard deviations in a 95 % interval
Candidate = tuple[str, int]  # readout, layer
Entry = tuple[str, str, str]  # task, split, subset


def with_readout(gains: pd.DataFrame) -> pd.DataFrame:
    """The table with a column that names the readout."""
    return gains.assign(readout=pd.Series(readout_names(gains), index=gains.index, dtype=object))


def stored_items(folder: Path | None, gains: pd.DataFrame) -> dict[Entry, dict[Candidate, Items]]:
    """Per-item contributions that lie in the run's folder, for the scores that the table holds."""
    found: dict[Entry, dict[Candidate, Items]] = {}
    if folder is None or not (folder / "results").is_dir():
        return found
    names = ["task", "split", "subset", "readout", "layer", "score"]
    known: dict[Any, float] = {tuple(row[:5]): row[5] for row in with_readout(gains)[names].to_numpy().tolist()}
    for file in sorted((folder / "results").glob("*/*.json")):
        told = json.loads(file.read_text(encoding="utf-8"))
        readout = Readout.from_row(told).name
        for score in told.get("scores", []):
            key = (told.get("task"), score["split"], score["subset"], readout, told.get("layer"))
            held = known.get(key)
            # a folder may keep results of task data that have changed since
            if held is None or score["score"] is None or not math.isclose(held, score["score"], abs_tol=1e-9):
                continue
            arrays = file.with_name(f"{file.stem}.{score['split']}.{score['subset']}.npz")
            if arrays.is_file():
                found.setdefault((str(key[0]), str(key[1]), str(key[2])), {})[readout, int(told["layer"])] = _read(arrays)
    return found


def _read(file: Path) -> Items:
    with np.load(file, allow_pickle=False) as held:
        gold = held["gold"].astype(np.float64) if "gold" in held.files else None
        return Items(str(held["rule"]), held["values"].astype(np.float64), gold)  # type: ignore[arg-type]


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
