"""A finished evaluation: scores of every layer and readout on every task, gains over the last
layer, and their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from layerscope.core.charts import Figure
from layerscope.core.columns import pivot
from layerscope.core.readout import READOUT_COLUMNS, Readout, readout_names
from layerscope.core.runs import view
from layerscope.core.statistics import INTERVAL
from layerscope.errors import UnknownNameError
from layerscope.evaluation.results import (
    ItemScores,
    ScoreResult,
    read_items,
    read_result,
    score_candidates,
)
from layerscope.store import StoredRun, checked

__all__ = ["Evaluation"]

TASK_COLUMNS = ["task", "split", "subset"]
SCORE_COLUMNS = [
    *("task", "task_type", "split", "subset", "metric", "template", "layer", "site", "depth"),
    *("final_norm", "pooling", "sink", "centering", "score"),
]
# against the last layer under the default readout, which is what a user who changes nothing gets
DEFAULT_GAIN = ["gain_over_default", *(f"default_{name}" for name in INTERVAL)]
GAIN_COLUMNS = [
    *(*TASK_COLUMNS, *READOUT_COLUMNS, "layer", "site", "score", "gain"),
    *(*INTERVAL, "tied_best", *DEFAULT_GAIN),
]

TaskPart = tuple[str, str, str]
"""A task, its split and its subset."""

ItemTable = dict[TaskPart, dict[tuple[str, int], ItemScores]]
"""Per-item contributions by part of a task, then by readout's name and layer."""


@dataclass
class Evaluation(StoredRun):
    """The result of `layerscope.evaluate`. `scores` is tidy; `gains` compares each layer with the
    last on the same items.

    `path` is the run's folder, or None for a run in memory.
    """

    kind: ClassVar[str] = "evaluation"
    files: ClassVar[dict[str, str]] = {"scores": "scores", "gains": "gains"}

    scores: pd.DataFrame
    gains: pd.DataFrame
    manifest: dict[str, Any]
    path: Path | None = None
    _items: ItemTable | None = field(default=None, repr=False)

    @property
    def failed(self) -> list[dict[str, str]]:
        """Return the tasks that could not be scored, each with the reason."""
        return self.manifest["failed"]

    def items(self) -> ItemTable:
        """Return the contribution of each item to each score, where scores are made of items."""
        if self._items is None:
            self._items = {} if self.path is None else read_item_table(self.path, self.gains)
        return self._items

    def in_memory(self) -> Evaluation:
        """Return the same evaluation without its folder."""
        return replace(self, path=None, _items=self.items())

    def best(self) -> pd.DataFrame:
        """Return for each task the best layer and readout, against the last layer under the same
        readout and under the default one.

        Gains have no interval: the best was picked on the items that it gains on.
        `layerscope.select` says what can be promised.
        """
        rows = []
        for (task, split, subset), group in self.gains.groupby(TASK_COLUMNS, sort=False):
            top = group.iloc[int(group["score"].argmax())]
            of_readout = group[(group[READOUT_COLUMNS] == top[READOUT_COLUMNS]).all(axis=1)]
            last = of_readout.iloc[int(of_readout["layer"].argmax())]
            rows.append(
                {
                    "task": task,
                    "split": split,
                    "subset": subset,
                    "best": top["score"],
                    "layer": int(top["layer"]),
                    "readout": Readout.from_row(top.to_dict()).name,
                    "last": last["score"],
                    "gain": top["gain"],
                    "default_last": top["score"] - top["gain_over_default"],
                    "gain_over_default": top["gain_over_default"],
                    "tied": of_readout.loc[of_readout["tied_best"], "layer"].astype(int).tolist(),
                }
            )
        return pd.DataFrame(rows)

    def wide(self, readout: str | None = None) -> pd.DataFrame:
        """Return a table with a row per layer and a column per task, in points (score × 100); for
        all readouts, or for one."""
        names = readout_names(self.scores)
        if readout is not None and readout not in set(names):
            raise UnknownNameError("readout of this evaluation", readout, set(names))
        rows = self.scores.assign(readout=names, points=100 * self.scores["score"])
        if rows[TASK_COLUMNS].drop_duplicates()["task"].duplicated().any():  # several splits
            rows["task"] = rows["task"] + " (" + rows["split"] + ", " + rows["subset"] + ")"
        if readout is None:
            return pivot(rows, ["task", "readout"], value="points")
        table = pivot(rows[rows["readout"] == readout], "task", value="points")
        return table.rename_axis(columns=None)

    def plot(self) -> Figure:
        """Return the mean score over tasks by layer, a line per readout, as an Altair chart."""
        return view(self.kind, "plot")(self)

    def summary(self) -> dict[str, Any]:
        """Return the main results as plain values."""
        return {
            "model": self.manifest["model"]["name"],
            "tasks": self.best().to_dict(orient="records"),
            "undefined": self.manifest["undefined"],
            "failed": self.failed,
            **super().summary(),
        }


def texts_file(run: str | Path, task: str) -> Path:
    """Return the file of the keys of a task's texts: what centering averages over."""
    return Path(run) / "texts" / f"{task}{checked.ARRAYS}"


def read_item_table(folder: Path, gains: pd.DataFrame) -> ItemTable:
    """Return the per-item contributions in a run's folder, for the scores in a table of gains."""
    columns = gains.assign(readout=readout_names(gains))
    names = [*TASK_COLUMNS, "readout", "layer", "score"]
    score_of = {tuple(row[:-1]): row[-1] for row in columns[names].to_numpy().tolist()}
    table: ItemTable = {}
    for file in sorted((folder / "results").glob(f"*/*{checked.ARRAYS}")):
        result = read_result(file)
        place = (result.readout.name, result.layer)
        for split_score in result.scores:
            key = (result.task, split_score.split, split_score.subset)
            score = score_of.get((*key, *place))
            # A folder may keep results of task data that have changed since.
            if score is None or split_score.score is None or abs(score - split_score.score) > 1e-9:
                continue
            items = read_items(file, *key[1:])
            if items is not None:
                table.setdefault(key, {})[place] = items
    return table


def score_table(results: Sequence[ScoreResult], n_blocks: int) -> pd.DataFrame:
    """Return one row per task, split, subset, layer and readout; an undefined readout has no
    score."""
    rows = [
        {
            "task": result.task,
            "task_type": result.task_type,
            "metric": result.metric,
            **result.readout.columns,
            "layer": result.layer,
            "site": result.site,
            "depth": result.layer / n_blocks,
            **asdict(score),
        }
        for result in results
        for score in result.scores
    ]
    table = pd.DataFrame(rows, columns=SCORE_COLUMNS).astype({"score": float})
    order = ["task", *READOUT_COLUMNS, "split", "subset", "layer"]
    return table.sort_values(order, ignore_index=True)


def gain_table(
    scores: pd.DataFrame,
    items_of: Callable[[tuple[str, Readout, int], str, str], ItemScores | None],
    seed: int = 0,
) -> pd.DataFrame:
    """Return each layer's gain over the last of the same readout, and over the last of the default
    one, for every task and readout.

    Both on the same resampled items, with the layers that tie for best. `items_of((task, readout,
    layer), split, subset)` gives the items of one score.
    """
    rows = []
    defined = scores.dropna(subset=["score"])
    for (task, split, subset), of_task in defined.groupby(TASK_COLUMNS, sort=False):
        default = None
        groups = {
            Readout(*map(str, key)): group
            for key, group in of_task.groupby(READOUT_COLUMNS, sort=False)
        }
        # the default first
        for readout, group in sorted(groups.items(), key=lambda item: item[0] != Readout()):
            layers = group["layer"].tolist()
            items = [
                items_of((str(task), readout, layer), str(split), str(subset)) for layer in layers
            ]
            last = layers.index(max(layers))
            if items[last] is None:
                items = [None] * len(layers)
            scored = score_candidates(group["score"].tolist(), items, seed)
            draws = [None] * len(layers) if scored.draws is None else list(scored.draws)
            is_known = None if scored.draws is None else np.isfinite(scored.draws).any(-1)
            if readout == Readout():
                default = (float(scored.values[last]), draws[last])
            gains = np.column_stack(scored.gains(last))
            tied = scored.tied(is_known)
            for i, (layer, site) in enumerate(zip(layers, group["site"], strict=True)):
                item_draws = None if items[i] is None else draws[i]
                over_default = _over_default(float(scored.values[i]), item_draws, default)
                place = [task, split, subset, *readout.columns.values(), layer, site]
                rows.append([*place, scored.values[i], *gains[i], bool(tied[i]), *over_default])
    order = [*TASK_COLUMNS, *READOUT_COLUMNS, "layer"]
    return pd.DataFrame(rows, columns=GAIN_COLUMNS).sort_values(order, ignore_index=True)


def _over_default(
    score: float, draws: np.ndarray | None, default: tuple[float, np.ndarray | None] | None
) -> tuple[float, float, float]:
    """Return the gain over the default readout's last layer and its interval: resamples are the
    same for every readout of a task."""
    if default is None:
        return math.nan, math.nan, math.nan
    value, default_draws = default
    if draws is None or default_draws is None:
        return score - value, math.nan, math.nan
    low, high = np.nanquantile(draws - default_draws, [0.025, 0.975])
    return score - value, float(low), float(high)
