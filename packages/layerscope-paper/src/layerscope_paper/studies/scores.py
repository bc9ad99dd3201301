"""Do inner layers score better than the last, and do the metrics say which?

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
    """Scores by layer beside the metrics, and what the metrics would have chosen."""

    name = "scores"
    title = "Scores by layer, and whether the metrics find the best one"
    paper = "Fig. 1, 3, 8, 9, Table 2"
    models = (1, None)
    final_norm = "applied"  # as the scores are: else the same layer is another vector in the two
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
        found = [_measure(request, spec, bar) for spec in read_specs(request.models)]
        table = pd.concat([part for each in found for part in each.tables()], ignore_index=True)
        conventions = {
            "models": {each.label: each.profile.manifest["model"] for each in found},
            "metrics": found[0].profile.manifest["conventions"]["metrics"],
            "readout": DEFAULT_READOUT,
            "choices": "per task, the layer with the lowest value of the metric "
            + ("on the task's own texts" if request.options["task_texts"] else "on the corpus"),
            "metrics_on": "each task's own texts"
            if request.options["task_texts"]
            else "the corpus",
            "chance": (
                "smooth-curve nulls: random phase and permuted increments; p is the larger, "
                "corrected for all metrics"
            ),
        }
        warnings = [
            f"{each.label}: {line}"
            for each in found
            for line in [*each.profile.manifest["warnings"], *each.notes]
        ]
        return Result(table, _verdict(found), conventions, warnings)

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Mean scores by depth; the mean gain of each rule over the last layer."""
        colors = model_colors(table)
        figure, axes = grid(1, 2, 9.0, 3.4)
        left, right = axes[0]
        chosen = table[table["kind"] == "choice"]
        rules = list(dict.fromkeys(chosen["metric"]))
        width = 0.8 / max(1, len(colors))
        for i, (name, color) in enumerate(colors.items()):
            means = (
                table[(table["kind"] == "score") & (table["model"] == name)]
                .groupby("depth")["value"]
                .mean()
            )
            left.plot(
                means.index, means.to_numpy(), color=color, label=escape_math(name), linewidth=1.5
            )
            gains = chosen[chosen["model"] == name].groupby("metric")["value"].mean().reindex(rules)
            right.bar(np.arange(len(rules)) + i * width, gains.to_numpy(), width, color=color)
        right.axhline(0, color="#888888", linewidth=0.8)
        right.set_xticks(
            np.arange(len(rules)) + 0.4 - width / 2,
            [f"lowest\n{rule}" for rule in rules],
            fontsize=7,
        )
        label_axes(axes, ["Mean score", "Gain over the last layer, layer chosen per task"])
        right.set_xlabel("")
        left.legend(frameon=False, fontsize=7)
        return figure


@dataclass
class _Found:
    """One model: its profile, its scores, its correlations and the choices of the rules."""

    label: str
    profile: Profile
    scores: pd.DataFrame  # task, layer, score × 100
    found: Correlations
    choices: pd.DataFrame  # rule, task, layer, gain
    seed: int
    notes: list[str]

    @property
    def blocks(self) -> int:
        return int(self.profile.manifest["model"]["n_blocks"])

    def means(self) -> pd.Series:
        """The mean score of every layer."""
        return self.scores.groupby("layer")["score"].mean()

    def gain_of(self, rule: str) -> Interval:
        """Over the last layer, over tasks."""
        return mean_of(self.choices.loc[self.choices["rule"] == rule, "gain"].to_numpy(), self.seed)

    def best_gain(self) -> Interval:
        """Of the best mean layer over the last, over tasks."""
        wide = self.scores.pivot(index="task", columns="layer", values="score")
        return mean_of(
            (wide[self.means().idxmax()] - wide[wide.columns.max()]).to_numpy(), self.seed
        )

    def tables(self) -> list[pd.DataFrame]:
        """Its rows of the study's table."""

        def placed(rows: pd.DataFrame) -> pd.DataFrame:
            sites = [site_of(int(layer)) for layer in rows["layer"]]
            return rows.assign(
                model=self.label, site=sites, depth=rows["layer"] / self.blocks, normalization="raw"
            )

        scores = self.scores.rename(columns={"score": "value"}).assign(
            kind="score", metric="score", n=1
        )
        choices = self.choices.rename(columns={"rule": "metric", "gain": "value"}).assign(
            kind="choice", n=1
        )
        correlations = self.found.layers.rename(columns={"tasks": "n"})[
            ["metric", "measure", *names(VALUE), "p_adjusted"]
        ]
        values = profile_rows(self.profile, self.label, kind="value", task=None, measure=None)
        parts = [
            values,
            placed(scores),
            correlations.assign(kind="correlation", model=self.label),
            placed(choices),
        ]
        return [part.reindex(columns=[*values.columns, "p_adjusted"]) for part in parts]


def _measure(request: Request, spec: Spec, bar: Progress) -> _Found:
    options = request.options
    chosen = list(dict.fromkeys([*options["metrics"], *options["rules"]]))
    bar.begin(f"loading {spec.label}|", 1)
    loaded = Spec(spec.open(request), spec.label)
    own = replace(request, model_options={}, engine=None)
    run = profile_of(own, loaded, chosen, bar)
    evaluation, failed = score_tasks(request, loaded.model, spec.label)  # type: ignore[arg-type]
    curves: list[Profile] = []
    notes = []
    if options["task_texts"]:
        where: dict[str, Any] = {
            "data_dir": options["data_dir"] or None,
            "sample": options["items"] or None,
        }
        for task in resolve_tasks(options["tasks"], seed=request.seed, **where):
            try:
                corpus = corpus_of(task, options["task_texts"], request.seed)
            except DataError as error:
                notes.append(f"{error} It is left out of the correlations and the choices.")
                continue
            place = request.work / f"{folder_name(spec.label)}-tasks" / folder_name(task.name)
            curves.append(profile_of(replace(own, texts=corpus, work=place), loaded, chosen, bar))
    tables = from_runs(curves or run, evaluation)
    wanted = tables.metrics[tables.metrics["metric"].isin(options["metrics"])]
    found = correlate(wanted, tables.scores, measures=MEASURES, seed=request.seed)
    scores = tables.scores.assign(score=100 * tables.scores["score"])
    notes += tables.notes
    choices = choose_by_lowest(tables.metrics, scores, options["rules"])
    return _Found(spec.label, run, scores, found, choices, request.seed, [*notes, *failed])


def choose_by_lowest(curves: pd.DataFrame, scores: pd.DataFrame, rules: list[str]) -> pd.DataFrame:
    """Per rule and task: the layer with the metric's lowest value among the layers with a score,
    and its gain over the last.

    `curves` has metric, layer and value, and a task if each task has its own. Of equal values the
    earlier layer is taken.
    """
    shared = [name for name in ("task", "layer") if name in curves]
    both = scores.merge(
        curves[curves["metric"].isin(rules)].dropna(subset=["value"]), on=shared
    ).sort_values("layer")
    picked = both.loc[both.groupby(["task", "metric"])["value"].idxmin()]
    last = scores.sort_values("layer").groupby("task")["score"].last()
    return picked.assign(gain=picked["score"] - picked["task"].map(last)).rename(
        columns={"metric": "rule"}
    )[CHOICE]


def _verdict(found: list[_Found]) -> list[str]:
    out: list[str] = []
    inner = 0
    clear = 0
    beyond = 0
    of = 0
    rules = []
    for each in found:
        means = each.means()
        best = int(means.idxmax())  # type: ignore[call-overload]
        last = int(means.index.max())
        gain = each.best_gain()
        inner += best < last
        clear += gain.sign > 0 and gain.n >= _FEWEST_TASKS
        tasks = each.scores["task"].nunique()
        text = (
            f"{each.label}: the best mean over {tasks} tasks is {means[best]:.2f} at layer {best} "
            f"of {each.blocks}, the last "
        )
        out.append(
            f"{text}layer has {means[last]:.2f}; the gain is {gain} points over tasks, chosen on "
            "the same tasks."
        )
        rows, sure = _clear(each.found.layers)
        beyond = beyond + len(sure)
        of = of + len(rows)
        out.append(
            "  Beyond unrelated curves of the same shape (distance correlation, corrected for "
            f"{len(rows)} metrics): {join_words(sure) or 'none'}. It depends on the null: "
            f"{int((rows['p_phase'] < 0.05).sum())} have p < 0.05 by random phase, "
            f"{int((rows['p_increments'] < 0.05).sum())} by permuted increments, before the "
            "correction."
        )
        together, sure = _clear(each.found.over_tasks)
        said = "nothing can be said: fewer than two have curves at the same layers"
        if len(together):
            said = (
                f"all drawn together: {join_words(sure) or 'none'}, over "
                f"{int(together['tasks'].max())} tasks"
            )
        out.append(f"  In the mean over single tasks {said}.")
        for rule in dict.fromkeys(each.choices["rule"]):
            gain = each.gain_of(rule)
            rules.append(gain.sign if gain.n >= _FEWEST_TASKS else 0)
            heading = metrics()[rule].info.title
            out.append(
                f"  Each task's layer by the lowest {heading}: {gain} points over the last layer, "
                f"over {gain.n} tasks."
            )
    out += _over_models(found)
    answer = (
        f"an inner layer has the best mean score in {inner} of {len(found)} "
        f"model{'s' * (len(found) > 1)}"
    )
    answer += f" (clearly in {clear})" * bool(inner)
    answer += f"; {beyond} of {of} metrics go with the scores beyond chance"
    if rules:
        up = sum(sign > 0 for sign in rules)
        down = sum(sign < 0 for sign in rules)
        answer += (
            f"; of {len(rules)} label-free choices {up} clearly beat the last layer and {down} "
            "clearly lose to it"
        )
    return [in_short(answer), *out]


def _clear(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The rows of distance correlation, and the metrics that are beyond chance in them."""
    rows = table[table["measure"] == "dcor"]
    return rows, rows[rows["p_adjusted"] < 0.05]["metric"].tolist()


def _over_models(found: list[_Found]) -> list[str]:
    """What the models say together; a test over them needs three families."""
    if len(found) < 2:
        return []
    families = {
        each.label: str(each.profile.manifest["model"].get("family") or each.label)
        for each in found
    }
    result = over_models({each.label: each.found for each in found}, families)
    table, sure = _clear(result.table)
    if table.empty:
        count = len(set(families.values()))
        return [
            (
                f"Over models nothing can be said: {count} families, and a test over them needs "
                f"{FEWEST_FAMILIES}."
            )
        ]
    return [
        f"Over {int(table['families'].max())} families of models (t-test, Holm over {len(table)} "
        f"metrics): {join_words(sure) or 'no metric'} beyond chance."
    ]


STUDY = Scores()
