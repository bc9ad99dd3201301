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
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.readout import DEFAULT_READOUT
from layerscope.core.statistics import INTERVAL, Interval, student_interval
from layerscope.core.valley import LEAST_SHARE
from layerscope.errors import LayerscopeError
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope.report.drawing import COLORS, style_axis
from layerscope.studies.base import Option, Result, Study
from layerscope.studies.shared.curves import SINKS, VALUES, mean_of, mean_table, whole_layer
from layerscope.studies.shared.figures import Figure, band, draw_panel, grid, head, legend_below
from layerscope.studies.shared.models import Request, Spec, canonical, profile_of, read_specs, runs_elsewhere
from layerscope.studies.shared.profiles import VALLEY, Valleys, by_layer, profile_rows
from layerscope.studies.shared.sink_edit import CONTROLS, EDITS, NONE, SinkActivation, SinkEdit, find_sink_activation
from layerscope.studies.shared.words import MOVES, in_short, join_words
from layerscope.studies.shared.work import most_tokens, score_tasks

_METRICS = ["prompt_entropy", "sink_ratio", "sink_first"]
_SCANNED = 32  # texts that the sink is looked for in
_COLUMNS = ["kind", "condition", "task", *VALUES]
_FEWEST_TASKS = 3  # below this no interval over tasks is given


class Intervene(Study):
    """The sink activation removed, clamped or replaced inside the forward pass."""

    name = "intervene"
    title = "The sink activation taken out of the forward pass"
    models = (1, 1)
    options = (
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
        return Result(table, verdict(found, sink, texts, request.seed), conventions, warnings)

    def shown(self, table: pd.DataFrame) -> pd.DataFrame:
        """The curves with all tokens."""
        return table[table["sink"] != "drop"]

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Prompt entropy and sink ratio under every condition, and scores where there are some."""
        conditions = list(dict.fromkeys(table["condition"]))
        colors = dict(zip(conditions, ["#000000", *COLORS], strict=False))
        scores, values = table[table["kind"] == "score"], table[table["kind"] == "value"]
        panels = 3 if len(scores) else 2
        figure, axes = grid(1, panels, 3.7 * panels, 3.5)
        blocks = int(values["layer"].max())
        for axis, metric, title in zip(axes[0], ("prompt_entropy", "sink_ratio"), ("Prompt entropy", "Sink ratio"), strict=False):
            draw_panel(axis, values, (metric, "keep", title), "condition", colors)
            axis.axvline(manifest["conventions"]["sink"]["layer"] / blocks, color="#888888", linewidth=0.8, linestyle=":")
        if len(scores):
            for condition, rows in scores.groupby("condition", sort=False):
                mean = rows.groupby("depth", as_index=False)["value"].mean()
                band(axes[0, 2], mean.assign(**dict.fromkeys(INTERVAL, mean["value"])), colors[condition])
            style_axis(axes[0, 2], f"Mean score, {scores['task'].nunique()} tasks", "depth", "points")
        legend_below(figure, colors)
        return head(figure, manifest, values["model"].iloc[0])


def _prompts(request: Request, model: LoadedModel) -> list[np.ndarray]:
    ids = model.tokenize(list(request.texts or ())[:_SCANNED], most_tokens(request, model)).ids
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
        return by_layer(self.run, "prompt_entropy", sink, texts)

    def valleys(self, texts: int, seed: int) -> Valleys:
        return replace(Valleys.of(self.run, self.label, seed, texts), label=self.condition)

    def dip_at(self, place: int, texts: int) -> tuple[float, float]:
        """How far mean prompt entropy at a layer lies below its lower shoulder: nats, and as a share of the shoulder."""
        curve = np.nanmean(self.entropies(texts), axis=0)
        shoulder = min(curve[: place + 1].max(), curve[place:].max())
        return float(shoulder - curve[place]), float((shoulder - curve[place]) / shoulder) if shoulder else 0.0

    def ratio(self) -> float:
        rows = self.run.table[(self.run.table["metric"] == "sink_ratio") & (self.run.table["normalization"] == "raw")]
        return float(rows["value"].max())

    def mean_scores(self) -> pd.Series:
        return self.scores.groupby("layer")["value"].mean()

    def tables(self, base: _Found, texts: int, seed: int) -> list[pd.DataFrame]:
        parts = [profile_rows(self.run, self.label, kind="value")]
        if self is not base:
            changes = {sink: self.entropies(texts, sink) - base.entropies(texts, sink) for sink in SINKS}
            common = {"kind": "difference", "metric": "prompt_entropy", "normalization": "raw"}
            settings = [
                ({**common, **whole_layer(layer, self.blocks), "sink": sink}, change[:, layer])
                for sink, change in changes.items()
                for layer in range(self.blocks + 1)
            ]
            parts.append(mean_table(settings, seed, _COLUMNS))
        parts.append(pd.DataFrame(self.valleys(texts, seed).rows(kind="valley")))
        if len(self.scores):
            places = pd.DataFrame([whole_layer(int(layer), self.blocks) for layer in self.scores["layer"]])
            own = self.scores.reset_index(drop=True)
            parts.append(own.assign(**places, kind="score", metric="score", normalization="raw", n=1))
        return [part.assign(model=self.label, condition=self.condition).reindex(columns=_COLUMNS) for part in parts]


def _measure(request: Request, model: LoadedModel, label: str, edit: str, sink: SinkActivation, bar: Progress) -> _Found:
    options = request.options
    own = replace(request, work=request.work / edit)
    with SinkEdit(model, sink, edit, request.seed):
        run = profile_of(replace(own, model_options={}, engine=None), Spec(model, label), _METRICS, bar)
        scores = pd.DataFrame(columns=["task", "layer", "value"])
        notes: list[str] = []
        if options["tasks"] and options["tasks"] != [NONE]:
            bar.begin(f"scores, {edit}|", 1)
            # never the common store: these vectors are not the model's own
            evaluation, notes = score_tasks(own, model, label, store=own.work / "vectors")
            scores = evaluation.scores.assign(value=100 * evaluation.scores["score"])[["task", "layer", "value"]]
    return _Found(edit, label, run, scores, model.n_blocks, [*run.manifest["warnings"], *notes])


def verdict(found: Sequence[_Found], sink: SinkActivation, texts: int, seed: int) -> list[str]:
    """Where the sink is, then every condition's valley and scores beside those of the model as it is."""
    base = found[0]
    before = base.valleys(texts, seed)
    carriers = join_words([f"{i} ({t:.0f} ×)" for i, t in list(zip(sink.features, sink.times, strict=True))[:5]])
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
            f"prompt entropy at layer {place} {MOVES[there.sign]}, {there} nats, and its dip there is "
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
                f"{each.condition} against the controls, points at the last layer, over tasks: it differs from "
                f"{join_words(parts)}."
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
    parts = [f"the valley at layer {place} goes under {join_words(gone)}"] * bool(gone)
    parts += [f"the valley at layer {place} stays under {join_words(left)}"] * bool(left)
    if not removals:
        parts = ["no edit but controls was asked for"]
    for names, does in ((which(controls, False), "goes"), (which(controls, True), "stays")):
        if names:
            parts.append(f"it {does} under the control{'s' * (len(names) != 1)} {join_words(names)}{', too' * (does == 'goes')}")
    return "; ".join(parts if controls else [*parts, "no control was run"])


def _score_answer(base: _Found, removals: Sequence[_Found], controls: Sequence[_Found]) -> list[str]:
    """What the scores of the last layer do under each removal, and whether they do it more than under every control."""
    scored = [each for each in removals if len(each.scores)]
    against = [each for each in controls if len(each.scores)]
    parts = []
    for sign, word in {1: "rise", -1: "fall", 0: "do not clearly move"}.items():
        own = [each for each in scored if _change(base, each).sign == sign]
        if own:
            parts.append(f"scores of the last layer {word} under {join_words([each.condition for each in own])}")
        if not own or not sign:
            continue
        for each in own:
            alike = [control.condition for control in against if _change(control, each).sign != sign]
            if alike:
                parts.append(f"under {each.condition} not clearly more than under {join_words(alike)}")
            elif against:
                parts.append(
                    f"under {each.condition} clearly more than under {join_words([control.condition for control in against])}"
                )
        if not against:
            parts.append("which an edit of this size may do by itself")
    return parts


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
        f"Scores, mean of {len(change)} tasks: best {one[best]:.1f} at layer {best} → {two[now]:.1f} at layer {now}; "
        f"last layer {one[last]:.1f} → {two[last]:.1f}, {_change(base, each)} points over tasks; "
        f"most at layer {worst}, {_change(base, each, worst)}."
    )


STUDY = Intervene()
