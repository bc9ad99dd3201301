"""A finished evaluation: scores of every layer and readout on every task, gains over the last
layer, and their uncertainty."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd

from layerscope.core.candidates import DRAWS, ScoredCandidates
from layerscope.core.charts import Figure
from layerscope.core.readout import READOUT_COLUMNS, Readout, readout_names
from layerscope.core.runs import view
from layerscope.core.statistics import INTERVAL, average_precision, bootstrap_rows, spearman
from layerscope.core.tables import pivot
from layerscope.errors import RunFolderError, UnknownNameError
from layerscope.store import StoredRun, checked

__all__ = ["Evaluation", "ItemScores"]

_AT_ONCE, _LEAST_DRAWS = (
    2**18,
    16,
)  # drawn items: their ranks take a few dozen bytes each; few draws at once take longer each

# how items make a score: a mean of per-item values, Spearman's ρ against a gold value, average
# precision of a ranking
Rule = Literal["mean", "spearman", "ap"]


@dataclass(frozen=True)
class ItemScores:
    """Per-item contributions (n,) and, where the rule needs one, the gold value of each item."""

    rule: Rule
    values: np.ndarray
    gold: np.ndarray | None = None

    def score(self, chosen: np.ndarray | slice = slice(None)) -> float:
        """The score of some items, drawn with repetition."""
        values = self.values[chosen]
        if self.rule == "mean":
            return float(values.mean())
        assert self.gold is not None
        gold = self.gold[chosen]
        return float(
            spearman(values, gold) if self.rule == "spearman" else average_precision(values, gold)
        )

    def save(self, file: Path) -> None:
        """Write the items as float32."""
        arrays = {"values": self.values.astype(np.float32)}
        if self.gold is not None:
            arrays["gold"] = self.gold.astype(np.float32)
        checked.write_arrays(file, arrays, {"rule": self.rule})

    @classmethod
    def load(cls, file: Path) -> ItemScores:
        """Read items back."""
        stored = checked.ArrayFile(file)
        gold = stored.read("gold").astype(np.float64) if "gold" in stored.names else None
        values = stored.read("values").astype(np.float64)
        return cls(stored.facts["rule"], values, gold)  # type: ignore[arg-type]


def resampled(items: Sequence[ItemScores], seed: int = 0, draws: int = DRAWS) -> np.ndarray:
    """Scores (len(items), draws) on the same resamples of items: of every layer, or of every
    candidate of a task."""
    count = len(items[0].values)
    rows = bootstrap_rows(count, draws, [seed, count])
    gold: dict[
        bytes, list[int]
    ] = {}  # items against the same gold values are ranked against them once
    for i, item in enumerate(items):
        gold.setdefault(
            item.rule.encode() + (b"" if item.gold is None else item.gold.tobytes()), []
        ).append(i)

    def scores_on(part: np.ndarray) -> np.ndarray:
        out = np.empty((len(items), len(part)))
        counts = np.stack([np.bincount(row, minlength=count) for row in part]).astype(
            np.float64
        )  # items are ranked once
        for same in gold.values():
            values, first = np.stack([items[i].values for i in same]), items[same[0]]
            if first.rule == "mean":
                out[same] = values @ counts.T / count
            else:
                assert first.gold is not None
                out[same] = (spearman if first.rule == "spearman" else average_precision)(
                    values, first.gold, counts
                )
        return out

    parts = np.array_split(rows, max(1, min(draws // _LEAST_DRAWS, rows.size // _AT_ONCE)))
    with ThreadPoolExecutor(
        min(8, os.cpu_count() or 1)
    ) as threads:  # small parts: Ctrl-C waits for no more than these
        return np.concatenate(list(threads.map(scores_on, parts)), axis=1)


def score_candidates(
    scores: Sequence[float], items: Sequence[ItemScores | None], seed: int = 0
) -> ScoredCandidates:
    """Scores of layers on one task with their resamples, for those whose items are known and the
    same."""
    score = np.asarray(scores, dtype=np.float64)
    known = [i for i, some in enumerate(items) if some is not None and np.isfinite(score[i])]
    if not known or not same_items([some for some in items if some is not None]):
        return ScoredCandidates(score)
    draws = np.full((len(score), DRAWS), np.nan)
    draws[known] = resampled([items[i] for i in known], seed)  # type: ignore[misc]
    return ScoredCandidates(score, draws)


def same_items(items: Sequence[ItemScores]) -> bool:
    """Whether layers were scored on the same items, so that they can be paired."""
    return len({len(item.values) for item in items}) == 1


_KINDS_OF_ITEMS = ("STS", "PairClassification", "Classification", "Reranking")


def items_of(task: Any, split: str, entry: dict[str, Any], predictions: Any) -> ItemScores | None:
    """The items of one split and subset; None where the score is not made of items (then it has no
    paired interval).

    `entry` is mteb's result of that split and subset.
    """
    kind, metric = task.metadata.type, task.metadata.main_score
    if kind == "Clustering":  # one value per set or draw, as mteb reports them
        values = entry.get("v_measures")
        if isinstance(values, dict):
            values = [value for level in values.values() for value in level]
        return ItemScores("mean", _numbers(values)) if values and len(values) > 1 else None
    if not predictions or kind not in _KINDS_OF_ITEMS:
        return None
    data = task.dataset
    data = data.get(entry["hf_subset"], data)[split]
    if kind == "STS" and "spearman" in metric:
        return ItemScores(
            "spearman", _numbers(predictions["cosine_scores"]), _numbers(data["score"])
        )
    if kind == "PairClassification" and metric.endswith("ap"):
        return _labeled_pairs(_numbers(data[task.label_column_name]).ravel(), metric, predictions)
    if kind == "Classification" and metric == "accuracy":
        return _classified(np.array(data[task.label_column_name]), predictions)
    if kind == "Reranking" and metric.startswith("map"):
        return _ranked(data["relevant_docs"], predictions)
    return None


def _numbers(values: Any) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def _labeled_pairs(labels: np.ndarray, metric: str, predictions: Any) -> ItemScores | None:
    signs = {"cosine_scores": 1}
    if metric.startswith("max_"):  # the best of several measures of similarity
        signs |= dict.fromkeys(("similarity_scores", "dot_scores"), 1)
        signs |= dict.fromkeys(("euclidean_distances", "manhattan_distances"), -1)
    measures = [
        sign * _numbers(predictions[name]) for name, sign in signs.items() if name in predictions
    ]
    rankings = [
        ItemScores("ap", values, labels) for values in measures if len(values) == len(labels)
    ]
    return max(rankings, key=lambda items: items.score()) if rankings else None


def _classified(gold: np.ndarray, predictions: Any) -> ItemScores | None:
    """Share of the experiments in which each text was classified right."""
    right = [
        np.array(experiment) == gold for experiment in predictions if len(experiment) == len(gold)
    ]
    return ItemScores("mean", np.mean(right, axis=0)) if right else None


def _ranked(relevant: Any, predictions: Any) -> ItemScores | None:
    """Average precision of each query."""
    values = []
    for query, scores in sorted(predictions.items()):
        wanted = {doc for doc, grade in relevant.get(query, {}).items() if grade > 0}
        if wanted:
            ranked = sorted(
                scores, key=lambda doc: (scores[doc], doc), reverse=True
            )  # equal scores: as mteb orders them
            hits = np.cumsum([doc in wanted for doc in ranked])
            precise = [hits[i] / (i + 1) for i, doc in enumerate(ranked) if doc in wanted]
            values.append(sum(precise) / len(wanted))
    return ItemScores("mean", np.array(values)) if len(values) > 1 else None


SCORE_COLUMNS = [
    "task",
    "task_type",
    "split",
    "subset",
    "metric",
    "template",
    "layer",
    "site",
    "depth",
]
SCORE_COLUMNS += ["final_norm", "pooling", "sink", "centering", "score"]
GAIN_COLUMNS = [
    "task",
    "split",
    "subset",
    *READOUT_COLUMNS,
    "layer",
    "site",
    "score",
    "gain",
    *INTERVAL,
    "tied_best",
]
# against the last layer under the default readout, which is what a user who changes nothing gets
DEFAULT_GAIN = ["gain_over_default", *(f"default_{name}" for name in INTERVAL)]
GAIN_COLUMNS += DEFAULT_GAIN

TaskPart = tuple[str, str, str]
"""A task, its split and its subset."""

ItemTable = dict[TaskPart, dict[tuple[str, int], ItemScores]]
"""Per-item contributions by part of a task, then by readout's name and layer."""


@dataclass
class Evaluation(StoredRun):
    """What `layerscope.evaluate` returns. `scores` is tidy; `gains` compares each layer with the
    last on the same items.

    `path` is the run's folder, or None for a run in memory.
    """

    kind: ClassVar[str] = "evaluation"
    files: ClassVar[dict[str, str]] = {"scores": "scores", "gains": "gains"}
    columns: ClassVar[dict[str, list[str]]] = {
        "scores": SCORE_COLUMNS,
        "gains": ["task", "split", "subset", *READOUT_COLUMNS, "layer", "score", "gain"],
    }

    scores: pd.DataFrame
    gains: pd.DataFrame
    manifest: dict[str, Any]
    path: Path | None = None
    _items: ItemTable | None = field(default=None, repr=False)

    @property
    def failed(self) -> list[dict[str, str]]:
        """Tasks that could not be scored, and why."""
        return self.manifest["failed"]

    def items(self) -> ItemTable:
        """What each item of a task contributed to each score, if the score is a mean over items."""
        if self._items is None:
            self._items = {} if self.path is None else read_item_table(self.path, self.gains)
        return self._items

    def in_memory(self) -> Evaluation:
        """The same evaluation without its folder."""
        return replace(self, path=None, _items=self.items())

    def best(self) -> pd.DataFrame:
        """Per task: the best layer and readout, against the last layer under the same readout and
        under the default one.

        Gains have no interval: the best was picked on the items that it gains on.
        `layerscope.select` says what can be promised.
        """
        if "gain_over_default" not in self.gains:
            raise RunFolderError(f"{self.path}: the gains have no column 'gain_over_default'.")
        rows = []
        for (task, split, subset), group in self.gains.groupby(
            ["task", "split", "subset"], sort=False
        ):
            top = group.iloc[int(group["score"].argmax())]
            same = group[(group[READOUT_COLUMNS] == top[READOUT_COLUMNS]).all(axis=1)]
            last = same.iloc[int(same["layer"].argmax())]
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
                    "tied": same.loc[same["tied_best"], "layer"].astype(int).tolist(),
                }
            )
        return pd.DataFrame(rows)

    def wide(self, readout: str | None = None) -> pd.DataFrame:
        """A table with a row per layer and a column per task, in points (score × 100); for all
        readouts, or for one."""
        names = pd.Series(readout_names(self.scores), index=self.scores.index, dtype=object)
        if readout is not None and readout not in set(names):
            raise UnknownNameError("readout of this evaluation", readout, set(names))
        rows = self.scores.assign(readout=names, points=100 * self.scores["score"])
        parts = rows[["task", "split", "subset"]].drop_duplicates()
        if parts["task"].duplicated().any():  # several splits or subsets of a task
            rows["task"] = rows["task"] + " (" + rows["split"] + ", " + rows["subset"] + ")"
        if readout is not None:
            return pivot(rows[rows["readout"] == readout], "task", value="points").rename_axis(
                columns=None
            )
        return pivot(rows, ["task", "readout"], value="points")

    def plot(self) -> Figure:
        """Draw the mean score over tasks by layer, a line per readout, as a matplotlib figure."""
        return view(self.kind, "plot")(self)

    def summary(self) -> dict[str, Any]:
        """What a reader wants first, as plain values."""
        return {
            "model": self.manifest["model"]["name"],
            "tasks": self.best().to_dict(orient="records"),
            "undefined": self.manifest["undefined"],
            "failed": self.failed,
            **super().summary(),
        }


def texts_file(run: str | Path, task: str) -> Path:
    """Where the keys of a task's texts are kept: what centering averages over."""
    return Path(run) / "texts" / f"{task}{checked.ARRAYS}"


def read_item_table(folder: Path, gained: pd.DataFrame) -> ItemTable:
    """The per-item contributions in a run's folder, for the scores that the table of gains
    holds."""
    table: ItemTable = {}
    columns = gained.assign(
        readout=pd.Series(readout_names(gained), index=gained.index, dtype=object)
    )
    names = ["task", "split", "subset", "readout", "layer", "score"]
    known: dict[Any, float] = {tuple(row[:5]): row[5] for row in columns[names].to_numpy().tolist()}
    for file in sorted((folder / "results").glob("*/*.json")):
        result = checked.read_checked_json(file)
        readout = Readout.from_row(result).name
        for entry in result.get("scores", []):
            part = (str(result["task"]), str(entry["split"]), str(entry["subset"]))
            score = known.get((*part, readout, result["layer"]))
            # a folder may keep results of task data that have changed since
            if (
                score is None
                or entry["score"] is None
                or not math.isclose(score, entry["score"], abs_tol=1e-9)
            ):
                continue
            arrays = file.with_name(f"{file.stem}.{part[1]}.{part[2]}{checked.ARRAYS}")
            if arrays.is_file():
                table.setdefault(part, {})[readout, int(result["layer"])] = ItemScores.load(arrays)
    return table


def score_table(results: Sequence[Mapping[str, Any]], n_blocks: int) -> pd.DataFrame:
    """One row per task, split, subset, layer and readout; an undefined readout has no score."""
    rows = []
    for result in results:
        if result["status"] == "failed":
            continue
        place = {**result, "depth": result["layer"] / n_blocks}
        for entry in result["scores"]:
            score = math.nan if entry["score"] is None else entry["score"]
            rows.append({**place, **entry, "score": score})
    table = pd.DataFrame(rows, columns=SCORE_COLUMNS)
    return table.sort_values(
        ["task", *READOUT_COLUMNS, "split", "subset", "layer"], ignore_index=True
    )


def gain_table(
    scores: pd.DataFrame,
    items_of: Callable[[tuple[str, Readout, int], str, str], ItemScores | None],
    seed: int = 0,
) -> pd.DataFrame:
    """For every task and readout: each layer's gain over the last of the same readout, and over the
    last of the default one.

    Both on the same resampled items, with the layers that tie for best. `items_of((task, readout,
    layer), split, subset)` gives the items of one score.
    """
    rows = []
    known = scores.dropna(subset=["score"])
    for (task, split, subset), of_task in known.groupby(["task", "split", "subset"], sort=False):
        default = None
        groups = {
            Readout(*map(str, key)): group
            for key, group in of_task.groupby(READOUT_COLUMNS, sort=False)
        }
        for readout, group in sorted(
            groups.items(), key=lambda item: item[0] != Readout()
        ):  # the default first
            layers, scored_at = group["layer"].tolist(), group["score"].tolist()
            items = [
                items_of((str(task), readout, layer), str(split), str(subset)) for layer in layers
            ]
            last = (layers.index(max(layers)),)
            scored = score_candidates(
                scored_at, items if items[last[0]] is not None else [None] * len(layers), seed
            )
            if readout == Readout():
                default = (scored.score[last], None if scored.draws is None else scored.draws[last])
            gained = np.column_stack(scored.gains(last))
            tied = scored.tied(None if scored.draws is None else np.isfinite(scored.draws).any(-1))
            for i, (layer, site) in enumerate(zip(layers, group["site"], strict=True)):
                draws = None if scored.draws is None or items[i] is None else scored.draws[i]
                over = _over_default(scored.score[i], draws, default)
                place = [task, split, subset, *readout.columns.values(), layer, site]
                rows.append([*place, scored.score[i], *gained[i], bool(tied[i]), *over])
    order = ["task", "split", "subset", *READOUT_COLUMNS, "layer"]
    return pd.DataFrame(rows, columns=GAIN_COLUMNS).sort_values(order, ignore_index=True)


def _over_default(
    score: float, draws: np.ndarray | None, default: tuple[float, np.ndarray | None] | None
) -> tuple[float, float, float]:
    """Gain over the default readout's last layer and its interval: resamples are the same for every
    readout of a task."""
    if default is None:
        return math.nan, math.nan, math.nan
    value, default_draws = default
    if draws is None or default_draws is None or len(draws) != len(default_draws):
        return score - value, math.nan, math.nan
    low, high = np.nanquantile(draws - default_draws, [0.025, 0.975])
    return score - value, float(low), float(high)
