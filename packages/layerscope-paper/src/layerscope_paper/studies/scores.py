"""Study `scores`: the scores of every layer on tasks, and the layers that metrics would choose.

Scores every layer on labeled tasks, profiles the model on the corpus and, as the paper's Appendix E
does, on each task's own texts; then correlates metrics with scores and lets each metric choose a
layer per task.

Table: `value` rows (the profile), `score` rows (task and layer, × 100), `correlation` rows (a
measure per metric, with its p against smooth-curve nulls) and `choice` rows (per task, the layer
with the lowest value of a metric: its score minus the last layer's). Figure: mean score by depth,
and the gain of each rule. Verdict: Fig. 1, Fig. 3 and Table 2, on these models and tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.columns import VALUE, names
from layerscope.core.readout import DEFAULT_READOUT
from layerscope.core.sites import site_of
from layerscope.core.statistics import Interval
from layerscope.errors import DataError
from layerscope.evaluation.tasks import resolve_tasks
from layerscope.metrics import metrics
from layerscope.profiling import Profile
from layerscope.progress import Progress
from layerscope_paper.correlation import Correlations, correlate, over_models
from layerscope_paper.correlation.pooled import FEWEST_FAMILIES
from layerscope_paper.correlation.study import from_runs
from layerscope_paper.correlation.task_texts import corpus_of
from layerscope_paper.drawing import escape_math
from layerscope_paper.studies.base import DATA_DIR, Option, Result, Study
from layerscope_paper.studies.shared.figures import Figure, grid, label_axes, model_colors
from layerscope_paper.studies.shared.models import (
    PAPER_METRICS,
    Request,
    Spec,
    canonical,
    folder_name,
    profile_of,
    read_specs,
    score_tasks,
)
from layerscope_paper.studies.shared.numbers import in_short, join_words, mean_of
from layerscope_paper.studies.shared.profiles import profile_rows

RULES = ["dime", "infonce", "dataset_entropy"]  # Table 2's
MEASURES = ("dcor", "spearman", "kendall")
CHOICE = ["rule", "task", "layer", "gain"]
_FEWEST_TASKS = 5  # below this an interval over tasks says nothing, and no choice is called clear


class Scores(Study):
    """Scores by layer beside the metrics, and the layers that metrics choose."""

    name = "scores"
    title = "Scores by layer, and whether the metrics find the best one"
    paper = "Fig. 1, 3, 8, 9, Table 2"
    models = (1, None)
    final_norm = "applied"  # as for the scores, so that a layer is the same vector in both
    options = (
        Option(
            "tasks", ["small"], "tasks to score, as for `layerscope evaluate --tasks`", filled=True
        ),
        Option("items", 0, "maximum items to score per task; 0: all", least=0),
        Option(
            "metrics",
            PAPER_METRICS,
            "metrics to correlate, as for `layerscope profile --metrics`",
            filled=True,
        ),
        Option("rules", RULES, "metrics whose lowest value chooses a layer per task"),
        Option(
            "task_texts",
            200,
            "texts per task for its own metrics; 0: use those of the corpus",
            least=0,
        ),
        DATA_DIR,
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Score, profile, correlate and choose, one model after the other."""
        request = canonical(request)
        models = [_measure(request, spec, bar) for spec in read_specs(request.models)]
        tables = [table for model in models for table in model.tables()]
        corpus = "each task's own texts" if request.options["task_texts"] else "the corpus"
        conventions = {
            "models": {model.label: model.profile.manifest["model"] for model in models},
            "metrics": models[0].profile.manifest["conventions"]["metrics"],
            "readout": DEFAULT_READOUT,
            "choices": f"per task, the layer with the lowest value of the metric on {corpus}",
            "metrics_on": corpus,
            "chance": (
                "smooth-curve nulls: random phase and permuted increments; p is the larger, "
                "corrected for all metrics"
            ),
        }
        warnings = [
            f"{model.label}: {line}"
            for model in models
            for line in [*model.profile.manifest["warnings"], *model.notes]
        ]
        table = pd.concat(tables, ignore_index=True)
        return Result(table, _verdict(models), conventions, warnings)

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Draw mean scores by depth, and the mean gain of each rule over the last layer."""
        colors = model_colors(table)
        figure, axes = grid(1, 2, 9.0, 3.4)
        score_axis, gain_axis = axes[0]
        scores = table[table["kind"] == "score"]
        choices = table[table["kind"] == "choice"]
        rules = list(dict.fromkeys(choices["metric"]))
        places = np.arange(len(rules))
        width = 0.8 / max(1, len(colors))
        for i, (name, color) in enumerate(colors.items()):
            means = scores[scores["model"] == name].groupby("depth")["value"].mean()
            label = escape_math(name)
            score_axis.plot(means.index, means, color=color, label=label, linewidth=1.5)
            gains = choices[choices["model"] == name].groupby("metric")["value"].mean()
            gain_axis.bar(places + i * width, gains.reindex(rules), width, color=color)
        gain_axis.axhline(0, color="#888888", linewidth=0.8)
        names = [f"lowest\n{rule}" for rule in rules]
        gain_axis.set_xticks(places + 0.4 - width / 2, names, fontsize=7)
        label_axes(axes, ["Mean score", "Gain over the last layer, layer chosen per task"])
        gain_axis.set_xlabel("")
        score_axis.legend(frameon=False, fontsize=7)
        return figure


@dataclass
class _ModelScores:
    """One model: its profile, its scores, its correlations and the choices of the rules."""

    label: str
    profile: Profile
    scores: pd.DataFrame  # task, layer, score × 100
    correlations: Correlations
    choices: pd.DataFrame  # rule, task, layer, gain
    seed: int
    notes: list[str]

    @property
    def blocks(self) -> int:
        return int(self.profile.manifest["model"]["n_blocks"])

    def means(self) -> pd.Series:
        """Return the mean score of every layer."""
        return self.scores.groupby("layer")["score"].mean()

    def gain_of(self, rule: str) -> Interval:
        """Return a rule's gain over the last layer, over tasks."""
        return mean_of(self.choices.loc[self.choices["rule"] == rule, "gain"].to_numpy(), self.seed)

    def best_gain(self) -> Interval:
        """Return the gain of the best mean layer over the last, over tasks."""
        wide = self.scores.pivot(index="task", columns="layer", values="score")
        gains = wide[self.means().idxmax()] - wide[wide.columns.max()]
        return mean_of(gains.to_numpy(), self.seed)

    def tables(self) -> list[pd.DataFrame]:
        """Return its rows of the study's table."""
        scores = self.scores.rename(columns={"score": "value"})
        choices = self.choices.rename(columns={"rule": "metric", "gain": "value"})
        correlations = self.correlations.layers.rename(columns={"tasks": "n"})[
            ["metric", "measure", *names(VALUE), "p_adjusted"]
        ]
        values = profile_rows(self.profile, self.label, kind="value", task=None, measure=None)
        columns = [*values.columns, "p_adjusted"]
        tables = [
            values,
            self._at_sites(scores.assign(kind="score", metric="score")),
            correlations.assign(kind="correlation"),
            self._at_sites(choices.assign(kind="choice")),
        ]
        return [table.assign(model=self.label).reindex(columns=columns) for table in tables]

    def _at_sites(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return rows by layer with their sites and depths."""
        sites = [site_of(int(layer)) for layer in rows["layer"]]
        depths = rows["layer"] / self.blocks
        return rows.assign(site=sites, depth=depths, normalization="raw", n=1)


def _measure(request: Request, spec: Spec, bar: Progress) -> _ModelScores:
    options = request.options
    measured = list(dict.fromkeys([*options["metrics"], *options["rules"]]))
    bar.begin(f"loading {spec.label}|", 1)
    loaded = Spec(spec.open(request), spec.label)
    own_request = replace(request, model_options={}, engine=None)
    run = profile_of(own_request, loaded, measured, bar)
    evaluation, notes = score_tasks(request, loaded.model, spec.label)  # type: ignore[arg-type]
    task_runs: list[Profile] = []
    if options["task_texts"]:
        for task in resolve_tasks(
            options["tasks"],
            seed=request.seed,
            data_dir=options["data_dir"] or None,
            sample=options["items"] or None,
        ):
            try:
                texts = corpus_of(task, options["task_texts"], request.seed)
            except DataError as error:
                notes.append(f"{error} It is left out of the correlations and the choices.")
                continue
            work = request.work / f"{folder_name(spec.label)}-tasks" / folder_name(task.name)
            task_request = replace(own_request, texts=texts, work=work)
            task_runs.append(profile_of(task_request, loaded, measured, bar))
    tables = from_runs(task_runs or run, evaluation)
    correlated = tables.metrics[tables.metrics["metric"].isin(options["metrics"])]
    correlations = correlate(correlated, tables.scores, measures=MEASURES, seed=request.seed)
    scores = tables.scores.assign(score=100 * tables.scores["score"])
    choices = choose_by_lowest(tables.metrics, scores, options["rules"])
    notes += tables.notes
    return _ModelScores(spec.label, run, scores, correlations, choices, request.seed, notes)


def choose_by_lowest(curves: pd.DataFrame, scores: pd.DataFrame, rules: list[str]) -> pd.DataFrame:
    """Choose, per rule and task, the layer with the metric's lowest value among the layers with a
    score; return its gain over the last.

    `curves` has metric, layer and value, and a task if each task has its own. Of equal values the
    earlier layer is taken.
    """
    keys = [name for name in ("task", "layer") if name in curves]
    values = curves[curves["metric"].isin(rules)].dropna(subset=["value"])
    merged = scores.merge(values, on=keys).sort_values("layer")
    chosen = merged.loc[merged.groupby(["task", "metric"])["value"].idxmin()]
    last = scores.sort_values("layer").groupby("task")["score"].last()
    chosen = chosen.assign(gain=chosen["score"] - chosen["task"].map(last))
    return chosen.rename(columns={"metric": "rule"})[CHOICE]


def _verdict(models: list[_ModelScores]) -> list[str]:
    """Describe the best layer, the correlations and the choices of every model."""
    out: list[str] = []
    inner_count = 0
    clear_count = 0
    related_count = 0
    metric_count = 0
    signs = []
    for model in models:
        means = model.means()
        best = int(means.idxmax())  # type: ignore[call-overload]
        last = int(means.index.max())
        gain = model.best_gain()
        inner_count += best < last
        clear_count += gain.sign > 0 and gain.n >= _FEWEST_TASKS
        tasks = model.scores["task"].nunique()
        out.append(
            f"{model.label}: the best mean over {tasks} tasks is {means[best]:.2f} at layer {best} "
            f"of {model.blocks}, the last layer has {means[last]:.2f}; the gain is {gain} points "
            "over tasks, chosen on the same tasks."
        )
        rows, related = _beyond_chance(model.correlations.layers)
        related_count += len(related)
        metric_count += len(rows)
        out.append(
            "  Beyond unrelated curves of the same shape (distance correlation, corrected for "
            f"{len(rows)} metrics): {join_words(related) or 'none'}. It depends on the null: "
            f"{int((rows['p_phase'] < 0.05).sum())} have p < 0.05 by random phase, "
            f"{int((rows['p_increments'] < 0.05).sum())} by permuted increments, before the "
            "correction."
        )
        rows, related = _beyond_chance(model.correlations.over_tasks)
        result = "nothing can be said: fewer than two have curves at the same layers"
        if len(rows):
            result = (
                f"all drawn together: {join_words(related) or 'none'}, over "
                f"{int(rows['tasks'].max())} tasks"
            )
        out.append(f"  In the mean over single tasks {result}.")
        for rule in dict.fromkeys(model.choices["rule"]):
            gain = model.gain_of(rule)
            signs.append(gain.sign if gain.n >= _FEWEST_TASKS else 0)
            out.append(
                f"  Each task's layer by the lowest {metrics()[rule].info.title}: {gain} points "
                f"over the last layer, over {gain.n} tasks."
            )
    out += _over_models(models)
    answer = (
        f"an inner layer has the best mean score in {inner_count} of {len(models)} "
        f"model{'s' * (len(models) > 1)}"
    )
    if inner_count:
        answer += f" (clearly in {clear_count})"
    answer += f"; {related_count} of {metric_count} metrics go with the scores beyond chance"
    if signs:
        answer += (
            f"; of {len(signs)} label-free choices {signs.count(1)} clearly beat the last layer "
            f"and {signs.count(-1)} clearly lose to it"
        )
    return [in_short(answer), *out]


def _beyond_chance(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows of distance correlation, and the metrics that are beyond chance in them."""
    rows = table[table["measure"] == "dcor"]
    return rows, rows[rows["p_adjusted"] < 0.05]["metric"].tolist()


def _over_models(models: list[_ModelScores]) -> list[str]:
    """Describe the test over several models, which needs three families."""
    if len(models) < 2:
        return []
    families = {
        model.label: str(model.profile.manifest["model"].get("family") or model.label)
        for model in models
    }
    result = over_models({model.label: model.correlations for model in models}, families)
    table, related = _beyond_chance(result.table)
    if table.empty:
        return [
            f"Over models nothing can be said: {len(set(families.values()))} families, and a test "
            f"over them needs {FEWEST_FAMILIES}."
        ]
    return [
        f"Over {int(table['families'].max())} families of models (t-test, Holm over {len(table)} "
        f"metrics): {join_words(related) or 'no metric'} beyond chance."
    ]


STUDY = Scores()
