"""Does the valley go, and do the scores move, when the sink activation is taken out inside the forward pass?

Finds the layer where one token becomes massive and the few features that carry it, then edits exactly these entries there, in
every pass, and profiles and scores the model again (`shared/sink_edit.py` has the edits). `remove`, `clamp` and `replace` take
the sink away. `control`, `matched` and `moved` leave it massive and change something else: what they do, an edit does by itself.

Table: `value` rows (the profile under each condition), `difference` rows (condition minus `none`, prompt by prompt), `valley`
rows, and `score` rows (task and layer, × 100). Figure: prompt entropy, sink ratio and mean score over depth, a line per
condition. Verdict: where the sink is, what becomes of the valley and of the scores, and whether removing the sink does more than
the controls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from layerscope.core.readout import DEFAULT_READOUT
from layerscope.core.sites import site_of
from layerscope.core.statistics import INTERVAL, Interval, student_interval
from layerscope.core.valley import LEAST_SHARE
from layerscope.errors import LayerscopeError
from layerscope.evaluation.job import evaluate
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope.report.drawing import COLORS
from layerscope.studies.base import Option, Result, Study
from layerscope.studies.shared.curves import (
    VALLEY,
    VALUES,
    Valleys,
    band,
    by_layer,
    draw_panel,
    escape_math,
    in_short,
    layers,
    lists,
    mean_of,
    new_figure,
    profile_rows,
    quiet,
    subtitle,
)
from layerscope.studies.shared.models import Request, Spec, canonical, folder_name, profile_of, read_specs, runs_elsewhere
from layerscope.studies.shared.sink_edit import CONTROLS, EDITS, NONE, SinkActivation, SinkEdit, find_sink_activation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_METRICS = ["prompt_entropy", "sink_ratio", "sink_first"]
_SCANNED = 32  # texts that the sink is looked for in
_COLUMNS = ["kind", "condition", "task", *VALUES]
_FEWEST_TASKS = 3  # below this no interval over tasks is given
_DOES = {1: "rises", -1: "falls", 0: "does not clearly move"}


class Intervene(Study):
    """The sink activation removed, clamped or replaced inside the forward pass."""

    name: ClassVar[str] = "intervene"
    title: ClassVar[str] = "The sink activation taken out of the forward pass"
    models: ClassVar[tuple[int, int | None]] = (1, 1)
    texts: ClassVar[bool] = True
    options: ClassVar[tuple[Option, ...]] = (
        Option("edits", list(EDITS), "edits of the forward pass; the last three are controls", valid=EDITS, filled=True),
        Option("layer", -1, "layer whose output is edited; -1: where the sink appears", least=-1),
        Option("again", False, "also edit every later layer, where the sink comes back"),
        Option("least", 5.0, "a token is a sink if its norm is at least this many times the text's median", least=1),
        Option("massive", 50.0, "a feature carries the sink if its entry is at least this many times the text's median", least=1),
        Option("tasks", ["small"], "tasks to score, as for `layerscope evaluate --tasks`; `none` scores nothing"),
        Option("items", 100, "maximum items to score per task; 0: all", least=0),
        Option("data_dir", "", "folder with the data of tasks"),
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Find the sink, then profile and score the model as it is and under every edit."""
        if runs_elsewhere(request):
            raise LayerscopeError("the study intervene edits the model in this process: leave engine= out.")
        request = canonical(request)
        given = read_specs(request.models)[0]
        bar.begin(f"loading {given.label}|", 1)
        model = given.open(request)
        if model.kind != "texts":
            raise LayerscopeError(f"the study intervene reads texts, and {given.label} reads {model.kind}.")
        sink = find_sink_activation(model, _prompts(request, model), request.options)
        found = [_measure(request, model, given.label, edit, sink, bar) for edit in [NONE, *request.options["edits"]]]
        texts = len(request.texts or ())
        table = pd.concat([part for each in found for part in each.tables(found[0], texts, request.seed)], ignore_index=True)
        conventions = {
            "models": {given.label: model.identity},
            "sink": sink.facts(),
            "edited": "the output of that layer's block, in every forward pass; all else is computed from the edited states",
            "valley": VALLEY,
            "differences": "condition minus none, of each prompt, then their mean",
            "scores": f"mean over texts, {DEFAULT_READOUT}, × 100; intervals of changes are Student's, over tasks",
        }
        warnings = list(dict.fromkeys(line for each in found for line in each.warnings))
        return Result(table.reindex(columns=_COLUMNS), verdict(found, sink, texts, request.seed), conventions, warnings)

    def shown(self, table: pd.DataFrame) -> pd.DataFrame:
        """The curves with all tokens."""
        return table[table["sink"] != "drop"]

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Prompt entropy and sink ratio under every condition, and scores where there are some."""
        from matplotlib.lines import Line2D

        conditions = list(dict.fromkeys(table["condition"]))
        colors = dict(zip(conditions, ["#000000", *COLORS], strict=False))
        scores = table[table["kind"] == "score"]
        values = table[table["kind"] == "value"]
        figure = new_figure(3.7 * (3 if len(scores) else 2), 3.5)
        axes = figure.subplots(1, 3 if len(scores) else 2)
        draw_panel(axes[0], values, ("prompt_entropy", "keep", "Prompt entropy"), "condition", colors)
        draw_panel(axes[1], values, ("sink_ratio", "keep", "Sink ratio"), "condition", colors)
        blocks = int(values["layer"].max())
        for axis in axes[:2]:
            axis.axvline(manifest["conventions"]["sink"]["layer"] / blocks, color="#888888", linewidth=0.8, linestyle=":")
        if len(scores):
            for condition, rows in scores.groupby("condition", sort=False):
                mean = rows.groupby("depth", as_index=False)["value"].mean()
                band(axes[2], mean.assign(**dict.fromkeys(INTERVAL, mean["value"])), colors[condition])
            quiet(axes[2], f"Mean score, {scores['task'].nunique()} tasks", "depth", "points")
        handles = [Line2D([], [], color=colors[name], label=name) for name in conditions]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
        figure.suptitle(escape_math(f"{values['model'].iloc[0]}: {subtitle(manifest)}"), fontsize=9)
        return figure


def _prompts(request: Request, model: LoadedModel) -> list[np.ndarray]:
    limit = request.max_length if model.max_length is None else min(request.max_length, model.max_length)
    ids = model.tokenize(list(request.texts or ())[:_SCANNED], limit).ids
    return [np.asarray(row) for row in ids if len(row) > 2]


# --- measuring ------------------------------------------------------------------------------------------------------------------


@dataclass
class _Found:
    """The profile, valley and scores of one condition."""

    condition: str
    label: str
    run: Any
    scores: pd.DataFrame  # task, layer, value × 100
    blocks: int
    warnings: list[str]

    def entropies(self, texts: int, sink: str = "keep") -> np.ndarray:
        return by_layer(self.run.prompts, "prompt_entropy", sink, texts).to_numpy()

    def valleys(self, texts: int, seed: int) -> Valleys:
        return replace(Valleys.of(self.run, self.label, seed, texts), label=self.condition)

    def dip_at(self, place: int, texts: int) -> tuple[float, float]:
        """How far mean prompt entropy at a layer lies below its lower shoulder: nats, and as a share of the shoulder."""
        curve = np.nanmean(self.entropies(texts), axis=0)
        shoulder = min(curve[: place + 1].max(), curve[place:].max())
        return float(shoulder - curve[place]), float((shoulder - curve[place]) / shoulder) if shoulder else 0.0

    def ratio(self, layer: int | None = None) -> float:
        rows = self.run.table[(self.run.table["metric"] == "sink_ratio") & (self.run.table["normalization"] == "raw")]
        values = rows.sort_values("layer")["value"]
        return float(values.max() if layer is None else values.iloc[layer])

    def mean_scores(self) -> pd.Series:
        return self.scores.groupby("layer")["value"].mean()

    def tables(self, base: _Found, texts: int, seed: int) -> list[pd.DataFrame]:
        parts = [profile_rows(self.run, self.label, kind="value", condition=self.condition)]
        rows: list[dict[str, Any]] = []
        if self is not base:
            for sink in ("keep", "drop"):
                change = self.entropies(texts, sink) - base.entropies(texts, sink)
                for layer in range(change.shape[1]):
                    mean = mean_of(change[:, layer], seed)
                    place = {"site": site_of(layer), "layer": layer, "depth": layer / self.blocks}
                    rows.append({"kind": "difference", **place, "metric": "prompt_entropy", "sink": sink, **mean.columns})
        valleys = replace(self.valleys(texts, seed), label=self.label)
        rows += [{**row, "kind": "valley"} for row in valleys.rows()]
        parts.append(pd.DataFrame(rows).assign(model=self.label, condition=self.condition, normalization="raw"))
        if len(self.scores):
            placed = self.scores.assign(
                kind="score", condition=self.condition, model=self.label, metric="score", normalization="raw", n=1,
                site=[site_of(int(layer)) for layer in self.scores["layer"]], depth=self.scores["layer"] / self.blocks,
            )  # fmt: skip
            parts.append(placed)
        return [part.reindex(columns=_COLUMNS) for part in parts]


def _measure(request: Request, model: LoadedModel, label: str, edit: str, sink: SinkActivation, bar: Progress) -> _Found:
    options = request.options
    own = replace(request, work=request.work / edit)
    with SinkEdit(model, sink, edit, request.seed):
        run = profile_of(replace(own, model_options={}, engine=None), Spec(model, label), _METRICS, bar)
        scores, notes = pd.DataFrame(columns=["task", "layer", "value"]), []
        if options["tasks"] and options["tasks"] != [NONE]:
            bar.begin(f"scores, {edit}|", 1)
            evaluation = evaluate(
                model,
                options["tasks"],
                out=own.work / f"{folder_name(label)}-scores",
                readouts=[DEFAULT_READOUT],
                data_dir=options["data_dir"] or None,
                sample=options["items"] or None,
                max_length=request.max_length,
                seed=request.seed,
                store=own.work / "vectors",  # never the common one: these vectors are not the model's own
                batch_size=request.batch_size,
                offline=request.offline,
                progress=False,
            )
            scores = evaluation.scores.assign(value=100 * evaluation.scores["score"])[["task", "layer", "value"]]
            notes = [f"{one['task']} could not be scored: {one['reason']}" for one in evaluation.failed]
    return _Found(edit, label, run, scores, model.n_blocks, [*run.manifest["warnings"], *notes])


def verdict(found: Sequence[_Found], sink: SinkActivation, texts: int, seed: int) -> list[str]:
    """Where the sink is, then every condition's valley and scores beside those of the model as it is."""
    base = found[0]
    before = base.valleys(texts, seed)
    carriers = lists([f"{i} ({t:.0f} ×)" for i, t in list(zip(sink.features, sink.times, strict=True))[:5]])
    more = f" and {len(sink.features) - 5} more" if len(sink.features) > 5 else ""
    out = [
        f"The sink appears at layer {sink.layer} of {base.blocks}: the largest token is {sink.ratio:.1f} × the median norm "
        f"there, the first token in {100 * sink.first:.0f} % of texts; feature{'s' * (len(sink.features) != 1)} {carriers}{more} "
        "carry it (entry over the text's median entry).",
        f"As it is: {before.sentence()}",
    ]
    for each in found[1:]:
        change = each.entropies(texts) - base.entropies(texts)
        place = before.kept.place
        there = mean_of(change[:, place], seed)
        out.append(
            f"{each.condition}: the largest token is at most {each.ratio():.1f} × the median (before: {base.ratio():.1f}); "
            f"prompt entropy at layer {place} {_DOES[there.sign]}, {there} nats, and its dip there is "
            f"{each.dip_at(place, texts)[0]:.2f} (before: {base.dip_at(place, texts)[0]:.2f}). "
            f"{each.valleys(texts, seed).sentence()}"
        )
        if len(each.scores):
            out.append(f"  {_score_sentence(base, each)}")
    removals = [each for each in found[1:] if each.condition not in CONTROLS]
    controls = [each for each in found[1:] if each.condition in CONTROLS]
    for each in removals:
        parts = [f"{control.condition} by {_change(control, each)}" for control in controls if len(control.scores)]
        if parts and len(each.scores):
            out.append(
                f"{each.condition} against the controls, points at the last layer, over tasks: it differs from {lists(parts)}."
            )
    answer = _valley_answer(before, removals, controls, texts)
    return [in_short("; ".join([answer, *_score_answer(base, removals, controls)])), *out]


def _valley_answer(before: Valleys, removals: Sequence[_Found], controls: Sequence[_Found], texts: int) -> str:
    """What becomes of the valley where it was: dips elsewhere do not count for it."""
    if not before.kept.is_valley:
        return "the model has no clear valley to begin with"
    place = before.kept.place

    def which(found: Sequence[_Found], there: bool) -> list[str]:
        return [each.condition for each in found if (each.dip_at(place, texts)[1] >= LEAST_SHARE) is there]

    gone, left = which(removals, False), which(removals, True)
    parts = [f"the valley at layer {place} goes under {lists(gone)}"] * bool(gone)
    parts += [f"the valley at layer {place} stays under {lists(left)}"] * bool(left)
    if not removals:
        parts = ["no edit but controls was asked for"]
    for names, does in ((which(controls, False), "goes"), (which(controls, True), "stays")):
        if names:
            parts.append(f"it {does} under the control{_s(names)} {lists(names)}{', too' * (does == 'goes')}")
    return "; ".join(parts if controls else [*parts, "no control was run"])


def _score_answer(base: _Found, removals: Sequence[_Found], controls: Sequence[_Found]) -> list[str]:
    """What the scores of the last layer do under each removal, and whether they do it more than under every control."""
    scored = [each for each in removals if len(each.scores)]
    against = [each for each in controls if len(each.scores)]
    parts = []
    for sign, word in {1: "rise", -1: "fall", 0: "do not clearly move"}.items():
        own = [each for each in scored if _change(base, each).sign == sign]
        if own:
            parts.append(f"scores of the last layer {word} under {lists([each.condition for each in own])}")
        if not own or not sign:
            continue
        for each in own:
            alike = [control.condition for control in against if _change(control, each).sign != sign]
            if alike:
                parts.append(f"under {each.condition} not clearly more than under {lists(alike)}")
            elif against:
                parts.append(
                    f"under {each.condition} clearly more than under {lists([control.condition for control in against])}"
                )
        if not against:
            parts.append("which an edit of this size may do by itself")
    return parts


def _s(names: Sequence[str]) -> str:
    return "s" * (len(names) != 1)


def _changes(base: _Found, each: _Found) -> pd.DataFrame:
    """Score minus the base's score: tasks by layers."""
    one, two = (found.scores.pivot(index="task", columns="layer", values="value") for found in (base, each))
    return (two - one).dropna()


def _change(base: _Found, each: _Found, layer: int | None = None) -> Interval:
    """The mean change over tasks at a layer, the last by default, with Student's interval where there are enough tasks."""
    change = _changes(base, each)
    values = change[change.columns.max() if layer is None else layer].to_numpy()
    return student_interval(values, _FEWEST_TASKS)


def _score_sentence(base: _Found, each: _Found) -> str:
    """The best layer's and the last layer's mean score, before and after, and where the change is largest."""
    one, two = base.mean_scores(), each.mean_scores()
    best, now = int(one.idxmax()), int(two.idxmax())  # type: ignore[call-overload]
    last = int(one.index.max())
    change = _changes(base, each)
    worst = int(change.mean().abs().idxmax())  # type: ignore[call-overload]
    return (
        f"Scores, mean of {len(change)} tasks: best {one[best]:.1f} at {layers([best])} → {two[now]:.1f} at {layers([now])}; "
        f"last layer {one[last]:.1f} → {two[last]:.1f}, {_change(base, each)} points over tasks; "
        f"most at {layers([worst])}, {_change(base, each, worst)}."
    )


STUDY = Intervene()
