"""Correlate metrics with scores across layers, from two tables or from runs: one point per layer,
and within each task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.stats import false_discovery_control

from layerscope.core.identity import ModelIdentity, Reading
from layerscope.core.readout import DEFAULT_READOUT, Readout, readout_names
from layerscope.core.runs import load_run
from layerscope.core.sites import whole_layers
from layerscope.core.statistics import INTERVAL
from layerscope.errors import InvalidValueError, LayerscopeError, RunFolderError, UnknownNameError
from layerscope_paper.correlation import maths, pooled

if TYPE_CHECKING:
    from layerscope.evaluation.run import Evaluation
    from layerscope.profiling import Profile

MIN_LAYERS = 5
MIN_SHARE = 0.6  # of the tasks: a layer with fewer is left out


def same_tasks(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of layers with at least `MIN_SHARE` of the tasks, and of tasks present at all
    of those layers.

    `table` has `task` and `layer`. A mean over the tasks that each layer has would move wherever a
    hard task is missing.
    """
    present = table.groupby("layer")["task"].nunique()
    layers = present.index[present >= MIN_SHARE * table["task"].nunique()]
    scored = table[table["layer"].isin(layers)]
    count = scored.groupby("task")["layer"].nunique()
    return scored[scored["task"].isin(count.index[count == len(layers)])]


@dataclass
class Tables:
    """Metrics and scores of one model, ready for `correlate`, with their conventions and notes."""

    metrics: pd.DataFrame
    scores: pd.DataFrame
    facts: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    def select_metrics(self, names: Sequence[str]) -> None:
        """Drop all metrics but these."""
        measured = set(self.metrics["metric"])
        for name in names:
            if name not in measured:
                raise UnknownNameError("metric", name, measured)
        self.metrics = self.metrics[self.metrics["metric"].isin(names)]


def from_folders(
    runs: Sequence[str | Path], readout: str = DEFAULT_READOUT, sink: str = "keep"
) -> list[Tables]:
    """Return tables for each evaluation, with the profiles of the same model."""
    profiles, evaluations = _runs_by_kind(runs)
    if len(evaluations) == 1:  # from_runs names the difference where models differ
        return [from_runs(profiles, evaluations[0], readout, sink)]
    identities = [ModelIdentity.of(run.manifest["model"]) for run in profiles]
    tables = []
    unused = set(range(len(profiles)))
    for evaluation in evaluations:
        model = ModelIdentity.of(evaluation.manifest["model"])
        matches = [i for i, identity in enumerate(identities) if identity.same_as(model)]
        if not matches:
            raise RunFolderError(
                f"there is no profile of {evaluation.name} among the folders: add one."
            )
        tables.append(from_runs([profiles[i] for i in matches], evaluation, readout, sink))
        unused -= set(matches)
    if unused:
        names = ", ".join(profiles[i].name for i in sorted(unused))
        raise RunFolderError(f"there is no evaluation of {names} among the folders: add one.")
    return tables


def from_runs(
    runs: Profile | Sequence[Profile],
    evaluation: Evaluation,
    readout: str = DEFAULT_READOUT,
    sink: str = "keep",
) -> Tables:
    """Return a profile's curves and an evaluation's scores, of the same model.

    Several profiles are each of one task's own texts (`task_corpus`): a task then has its own
    values.
    """
    profiles = list(runs) if isinstance(runs, Sequence) else [runs]
    evaluated = ModelIdentity.of(evaluation.manifest["model"])
    for run in profiles:
        profiled = ModelIdentity.of(run.manifest["model"])
        if (difference := profiled.difference(evaluated)) is not None:
            raise LayerscopeError(
                f"the profile is of {profiled.name} and the evaluation of {evaluated.name}, and "
                f"they differ in {difference}. Give two runs of the same model."
            )
    if sink not in ("keep", "drop"):
        raise UnknownNameError("sink setting", sink, ["keep", "drop"])
    scores = from_scores(evaluation, readout)
    reading = Reading.of(profiles[0].manifest)
    norms = {"metrics": str(reading.final_norm), "scores": Readout.parse(readout).final_norm}
    facts = {
        "model": profiles[0].name,
        "source": "runs",
        "readout": readout,
        "sink": sink,
        "final_norm": norms,
    }
    if family := profiles[0].manifest["model"].get("family"):
        # models of one architecture are one unit of a test over models
        facts["family"] = str(family)
    # None: texts of no task
    tasks = [run.manifest.get("corpus", {}).get("task") for run in profiles]
    notes = []
    columns = ["metric", "layer", "value"]
    if tasks[0] is not None:
        facts["metrics_on"] = "each task's own texts"
        columns.insert(1, "task")
        if missing := sorted(set(scores["task"]) - set(map(str, tasks))):
            notes.append(
                f"no profile of the texts of {', '.join(missing)}: left out. `profile(model, "
                "task_corpus(TASK))` makes one."
            )
    if reading.has_norm and reading.final_norm != norms["scores"]:
        notes.append(
            f"the metrics were taken with final_norm={norms['metrics']}, the scores with "
            f"{norms['scores']}: the same layer is a different vector in the two. Profile with "
            f"final_norm={norms['scores']} to compare like with like."
        )
    _check_profiles(profiles, tasks)
    curves = [
        _curves(run, sink).assign(task=task) for run, task in zip(profiles, tasks, strict=True)
    ]
    return Tables(pd.concat(curves, ignore_index=True)[columns], scores, facts, notes)


def from_scores(evaluation: Evaluation, readout: str = DEFAULT_READOUT) -> pd.DataFrame:
    """Return the scores of one readout: task, layer, score (the mean over a task's subsets)."""
    measured = evaluation.scores
    names = pd.Series(readout_names(measured), index=measured.index)
    if readout not in set(names):
        raise UnknownNameError("readout of this evaluation", readout, set(names))
    return measured[names == readout].groupby(["task", "layer"])["score"].mean().reset_index()


def _check_profiles(profiles: Sequence[Profile], tasks: Sequence[str | None]) -> None:
    if len(profiles) == 1:
        return
    if None in tasks:
        raise LayerscopeError(
            "several profiles are taken only if each is of one task's texts (`profile(model, "
            "task_corpus(TASK))`)."
        )
    if twice := sorted({str(task) for task in tasks if tasks.count(task) > 1}):
        raise LayerscopeError(
            f"there is more than one profile of the texts of {', '.join(twice)}: give one of each "
            "task."
        )
    norms = {Reading.of(run.manifest).final_norm for run in profiles}
    if len(norms) > 1:
        raise LayerscopeError(
            f"the profiles differ in final_norm ({', '.join(sorted(map(str, norms)))}): the same "
            "layer is a different vector in them. Profile all with the same."
        )


def _curves(run: Profile, sink: str) -> pd.DataFrame:
    """Return a profile's values by layer; metrics over prompts have no sink setting."""
    curves = whole_layers(run.table[run.table["normalization"] == "raw"])
    with_setting = set(curves.loc[curves["sink"] == sink, "metric"])
    return curves[(curves["sink"] == sink) | ~curves["metric"].isin(with_setting)]


@dataclass
class Correlations:
    """The result of `correlate`. `layers` has a row per metric and measure, of one point per layer
    (mean over tasks); `tasks` has the same within each task.

    Both hold value, its interval, the values of unrelated curves as smooth as the scores'
    (null_mean, null_95), p by each null (p_phase, p_increments), p (the larger of the two) and
    p_adjusted. `layers` also has the value and the adjusted p without the last layer. `over_tasks`:
    the mean of the tasks' correlations with its p, all tasks together (see `pooled`); `over_models`
    needs it. `undefined` lists the pairs without a correlation, with the reason.
    """

    layers: pd.DataFrame
    tasks: pd.DataFrame
    undefined: list[dict[str, str]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    over_tasks: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame(columns=pooled.TASK_COLUMNS)
    )

    def within(self) -> pd.DataFrame:
        """Return, per metric and measure over the single tasks, their number, median, middle half,
        and the share with adjusted p < 0.05."""
        groups = self.tasks.groupby(["metric", "measure"], sort=False)
        return groups.agg(
            tasks=("value", "size"),
            median=("value", "median"),
            q25=("value", lambda v: v.quantile(0.25)),
            q75=("value", lambda v: v.quantile(0.75)),
            null_mean=("null_mean", "mean"),
            positive=("value", lambda v: float((v > 0).mean())),
            beyond=("p_adjusted", lambda p: float((p < 0.05).mean())),
        ).reset_index()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        tables = {
            "layers": self.layers,
            "over_tasks": self.over_tasks,
            "within": self.within(),
            "tasks": self.tasks,
        }
        return {**self.facts, **pooled.as_records(tables), "undefined": self.undefined}


def correlate(
    metrics: pd.DataFrame | Profile | Sequence[Profile | str | Path] | str | Path,
    scores: pd.DataFrame | Evaluation | str | Path,
    *,
    readout: str = "plain/mean/applied/keep/none",
    sink: str = "keep",
    measures: Sequence[str] = ("dcor", "dcor_corrected", "spearman", "kendall"),
    surrogates: int = 999,
    bootstrap: int = 2000,
    seed: int = 0,
    within: bool = True,
) -> Correlations:
    """Correlate each metric with the scores across layers.

    Give either runs (or their folders) or tables:

    - Runs: a profile (or a list of profiles, each of one task's own texts) and an evaluation of the
      same model. `readout` and
      `sink` select the scores and values to use.
    - Tables: `metrics` with the columns metric, layer, value, and `task` if each task has its own
      values (None or absent: the
      same for all tasks); `scores` with task, layer, score. Only layers that are in both are used.

    Neighboring layers are alike, so shuffling them is not a valid null. Instead the metric's curve
    is compared with `surrogates` random curves of each of two kinds, random phase and permuted
    increments that keep the scores' shape and are as smooth. `p` is the larger of the two p-values.
    `p_adjusted` is corrected over the metrics: by their common draws for the layer means and for
    the mean over tasks, by Benjamini and Hochberg's method over all metrics and tasks within tasks.
    The report and the atlas use the same null and the same numbers.
    """
    facts: dict[str, Any] = {}
    if not isinstance(metrics, pd.DataFrame) or not isinstance(scores, pd.DataFrame):
        runs: list[Any] = []
        for argument in (metrics, scores):
            runs += argument if isinstance(argument, list | tuple) else [argument]
        profiles, evaluations = _runs_by_kind(runs)
        if len(evaluations) > 1:
            raise LayerscopeError(f"give one evaluation, not {len(evaluations)}.")
        tables = from_runs(profiles, evaluations[0], readout, sink)
        metrics = tables.metrics
        scores = tables.scores
        facts = {**tables.facts, "notes": tables.notes}
    for name in measures:
        if name not in maths.MEASURES:
            raise UnknownNameError("measure", name, maths.MEASURES)
    if surrogates < 99 or bootstrap < 100:
        raise InvalidValueError(
            f"surrogates={surrogates} and bootstrap={bootstrap} are too few for p-values and "
            "intervals: give at least 99 and 100."
        )
    _check_columns("metrics", metrics, ["metric", "layer", "value"])
    _check_columns("scores", scores, ["task", "layer", "score"])
    job = _Job(tuple(measures), surrogates, bootstrap, seed)
    metrics = metrics.dropna(subset=["value"])
    scores = scores.dropna(subset=["score"])
    pairs = _pairs(metrics, scores)
    points = {
        name: _layer_points(pairs[pairs["metric"] == name])
        for name in map(str, metrics["metric"].unique())
    }
    layers = job.all_layer_means(points)
    rows = list(job.single_tasks(pairs)) if within else []
    settings = {
        "null": list(maths.NULLS),
        "surrogates": surrogates,
        "bootstrap": bootstrap,
        "seed": seed,
        "power_at": maths.RELATED,
        "power": {m: job.power(m) for m in measures} if len(layers) else {},
    }
    # the last layer is often apart, and may make or hide a relation alone
    inner = _Job(job.measures, surrogates, bootstrap, seed, inner=True).all_layer_means(points)
    without_last = inner.set_index(["metric", "measure"])[["value", "p_adjusted"]].set_axis(
        ["value_without_last", "p_without_last"], axis=1
    )
    return Correlations(
        layers.join(without_last, on=["metric", "measure"]),
        pooled.adjusted(pd.DataFrame(rows, columns=_COLUMNS), false_discovery_control),
        job.undefined,
        {**facts, **settings},
        pooled.over_tasks(job.pools),
    )


def _check_columns(name: str, table: pd.DataFrame, columns: list[str]) -> None:
    """Refuse a table that lacks a column."""
    missing = [column for column in columns if column not in table]
    if missing:
        raise LayerscopeError(
            f"the table of {name} lacks {', '.join(missing)}; it has "
            f"{', '.join(map(str, table.columns))}."
        )


def _runs_by_kind(runs: Iterable[Any]) -> tuple[list[Profile], list[Evaluation]]:
    """Return profiles and evaluations, opened where folders were given."""
    loaded: list[Any] = [load_run(run) if isinstance(run, str | Path) else run for run in runs]
    profiles = [run for run in loaded if run.kind == "profile"]
    evaluations = [run for run in loaded if run.kind == "evaluation"]
    if not evaluations or not profiles or len(evaluations) + len(profiles) != len(loaded):
        raise RunFolderError(
            "give the folders of a profile and of an evaluation of the same model; given: "
            f"{', '.join(run.kind for run in loaded) or 'none'}. `layerscope profile` and "
            "`layerscope evaluate` make them."
        )
    return profiles, evaluations


_COLUMNS = [
    "metric",
    "measure",
    "task",
    "value",
    *INTERVAL,
    "p",
    "p_adjusted",
    "p_phase",
    "p_increments",
]
_COLUMNS += ["null_mean", "null_95", "layers", "tasks"]


@dataclass
class _Job:
    """One call of `correlate`: its settings, and what later steps need of earlier ones."""

    measures: tuple[str, ...]
    surrogates: int
    bootstrap: int
    seed: int
    inner: bool = False
    undefined: list[dict[str, str]] = field(default_factory=list)
    pools: dict[tuple[str, str], list[pooled.TaskPool]] = field(default_factory=dict)
    # by metric and measure, of the layer means
    nulls: dict[tuple[str, str], dict[str, maths.Array]] = field(default_factory=dict)
    curves: dict[str, tuple[maths.Array, maths.Array, dict[str, maths.Array]]] = field(
        default_factory=dict
    )

    def all_layer_means(self, points: Mapping[str, tuple[pd.DataFrame, int]]) -> pd.DataFrame:
        """Return a row per metric and measure, corrected over the metrics."""
        rows: list[dict[str, Any]] = []
        for name, (metric_points, tasks) in points.items():
            rows += self.layer_means(name, metric_points, tasks)
        return pooled.adjusted_together(pd.DataFrame(rows, columns=_COLUMNS), self.nulls)

    def layer_means(
        self, metric: str, points: pd.DataFrame, tasks: int
    ) -> Iterable[dict[str, Any]]:
        """Yield a row per measure, of one point per layer; without the last layer if `inner`."""
        points = points.iloc[:-1] if self.inner else points
        x = points["value"].to_numpy(float)
        y = points["score"].to_numpy(float)
        if self._defined(metric, x, y, None):
            curves = maths.surrogate_curves(y, self.surrogates, self.seed)
            self.curves[metric] = x, y, curves
            for row, nulls in self._compare([metric], x[None], y, curves, None, tasks):
                self.nulls[metric, row["measure"]] = nulls
                yield row

    def power(self, measure: str) -> dict[str, float]:
        """Return, per metric, the share of curves like it that go with the scores and that would be
        found, after the correction for all metrics."""
        nulls = [drawn for (_, name), drawn in self.nulls.items() if name == measure]
        level = maths.corrected_level(measure, nulls)
        return {
            name: maths.estimate_power(measure, x, y, surrogates, level, self.seed)
            for name, (x, y, surrogates) in self.curves.items()
        }

    def single_tasks(self, pairs: pd.DataFrame) -> Iterable[dict[str, Any]]:
        """Yield a row per task, metric and measure. Tasks known at the same layers share their
        surrogates' draws."""
        by_layers: dict[tuple[int, ...], dict[str, tuple[maths.Array, dict[str, maths.Array]]]] = {}
        keys = product(pairs["task"].unique(), pairs["metric"].unique())
        pairs = pairs.sort_values("layer")
        # arrays, because there are hundreds of small groups
        rows_of = pairs.groupby(["task", "metric"]).indices
        all_layers = pairs["layer"].to_numpy()
        values = pairs["value"].to_numpy(float)
        scores = pairs["score"].to_numpy(float)
        for task, metric in keys:
            if (task, metric) not in rows_of:
                continue
            rows = rows_of[task, metric]
            rows = rows[~np.isnan(values[rows])]
            x = values[rows]
            y = scores[rows]
            if self._defined(metric, x, y, str(task)):
                tasks = by_layers.setdefault(tuple(all_layers[rows]), {})
                tasks.setdefault(str(task), (y, {}))[1][metric] = x
        for layers, tasks in by_layers.items():
            ys = np.stack([y for y, _ in tasks.values()])
            curves = maths.surrogate_curves(ys, self.surrogates, self.seed)
            pools: dict[tuple[str, str], pooled.TaskPool] = {}
            for i, (task, (_, by_metric)) in enumerate(tasks.items()):
                xs = np.stack(list(by_metric.values()))
                task_curves = {kind: drawn[:, i] for kind, drawn in curves.items()}
                for row, nulls in self._compare(list(by_metric), xs, ys[i], task_curves, task, 1):
                    key = row["metric"], row["measure"]
                    pools.setdefault(key, pooled.TaskPool(len(layers))).add(row["value"], nulls)
                    yield row
            for key, pool in pools.items():
                self.pools.setdefault(key, []).append(pool)

    def _defined(self, metric: str, x: maths.Array, y: maths.Array, task: str | None) -> bool:
        """Return True if the two curves have a correlation; record the reason if not."""
        reason = maths.undefined_because(x, y, MIN_LAYERS)
        if reason:
            self.undefined.append(
                {"metric": metric, "task": task or "mean over tasks", "reason": reason}
            )
        return reason is None

    def _compare(
        self,
        names: list[str],
        xs: maths.Array,
        y: maths.Array,
        curves: dict[str, maths.Array],
        task: str | None,
        tasks: int,
    ) -> Iterable[tuple[dict[str, Any], dict[str, maths.Array]]]:
        """Yield a row and the surrogates' values for each metric with one curve of scores."""
        for measure in self.measures:
            values = [maths.association(measure, x, y) for x in xs]
            nulls = {kind: maths.null_values(measure, xs, drawn) for kind, drawn in curves.items()}
            chances = maths.compare_with(measure, values, nulls)
            for k, (metric, value, chance) in enumerate(zip(names, values, chances, strict=True)):
                row = {
                    "metric": metric,
                    "measure": measure,
                    "task": task,
                    "value": value,
                    "layers": len(y),
                    "tasks": tasks,
                }
                if task is None:  # of the many single tasks, the spread matters
                    ends = maths.bootstrap_interval(measure, xs[k], y, self.bootstrap, self.seed)
                    row |= dict(zip(INTERVAL, ends or (None, None), strict=True))
                yield row | chance.columns, {name: drawn[k] for name, drawn in nulls.items()}


def _layer_points(pairs: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return a metric's points, one per layer (means over the same tasks of metric and scores), and
    the number of these tasks."""
    pairs = same_tasks(pairs.dropna(subset=["value"]))
    return pairs.groupby("layer")[["value", "score"]].mean().sort_index(), pairs["task"].nunique()


def _pairs(metrics: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Return each task's scores by layer beside a metric's values there, empty where it has none.

    A metric without tasks goes with every task.
    """
    task_scores = scores.groupby(["task", "layer"], sort=False)["score"].mean().reset_index()
    tables = [pd.DataFrame(columns=["task", "layer", "score", "value", "metric"])]
    for metric, rows in metrics.groupby("metric", sort=False):
        keys = ["layer"]
        if "task" in rows and rows["task"].notna().any():
            keys = ["task", "layer"]
        means = rows.groupby(keys)["value"].mean().reset_index()
        matching = task_scores
        if "task" in keys:
            matching = task_scores[task_scores["task"].isin(means["task"])]
        tables.append(matching.merge(means, how="left").assign(metric=str(metric)))
    return pd.concat(tables[1:] or tables, ignore_index=True)
