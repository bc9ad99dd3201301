"""Study `intervene`: valley and scores without the sink activation, removed in the forward pass.

Finds the layer where one token becomes massive and the few features that carry it, then edits
exactly these entries there, in every pass, and profiles and scores the model again (`sink_edit.py`
has the edits). `remove`, `clamp` and `replace` remove the sink. `control`, `matched` and `moved`
leave it massive and change something else: they show the effect of an edit by itself.

Table: `value` rows (the profile under each condition), `difference` rows (condition minus `none`,
prompt by prompt), `valley` rows, and `score` rows (task and layer, × 100). Figure: prompt entropy,
sink ratio and mean score over depth, a line per condition. Verdict: the place of the sink, the
valley and the scores under each edit, and the removals against the controls.

    layerscope-paper study intervene smollm2-135m -n 12 --max-length 64 --set items=40
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.readout import DEFAULT_READOUT
from layerscope.core.statistics import LEAST_SHARE, Interval
from layerscope.errors import LayerscopeError
from layerscope.models import LoadedModel
from layerscope.profiling import Profile
from layerscope.progress import Progress
from layerscope_paper.drawing import COLORS, style_axis
from layerscope_paper.studies.base import DATA_DIR, Option, Result, Study
from layerscope_paper.studies.shared.figures import (
    Figure,
    draw_panel,
    grid,
    legend_below,
    with_heading,
)
from layerscope_paper.studies.shared.models import (
    Request,
    Spec,
    canonical,
    max_tokens,
    profile_of,
    read_specs,
    runs_elsewhere,
    score_tasks,
)
from layerscope_paper.studies.shared.numbers import (
    MOVES,
    VALUES,
    in_short,
    join_words,
    mean_of,
    student_interval,
    whole_layer,
)
from layerscope_paper.studies.shared.profiles import VALLEY, Profiles, by_layer, profile_rows
from layerscope_paper.studies.shared.sink_edit import (
    CONTROLS,
    EDITS,
    NONE,
    SinkActivation,
    SinkEdit,
    find_sink_activation,
)

_METRICS = ["prompt_entropy", "sink_ratio", "sink_first"]
_SCANNED = 32  # texts in which the sink is searched
_COLUMNS = ["kind", "condition", "task", *VALUES]
_FEWEST_TASKS = 3  # below this no interval over tasks is given


class Intervene(Study):
    """The sink activation removed, clamped or replaced inside the forward pass."""

    name = "intervene"
    title = "The sink activation taken out of the forward pass"
    models = (1, 1)
    options = (
        Option(
            "edits",
            list(EDITS),
            "edits of the forward pass; the last three are controls",
            valid=EDITS,
            filled=True,
        ),
        Option("layer", -1, "layer whose output is edited; -1: where the sink appears", least=-1),
        Option(
            "least",
            5.0,
            "a token is a sink if its norm is at least this many times the text's median",
            least=1,
        ),
        Option(
            "massive",
            50.0,
            "a feature carries the sink if its entry is at least this many times the text's median",
            least=1,
        ),
        Option(
            "tasks",
            ["small"],
            "tasks to score, as for `layerscope evaluate --tasks`; `none` scores nothing",
        ),
        Option("items", 100, "maximum items to score per task; 0: all", least=0),
        DATA_DIR,
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Find the sink, then profile and score the model as it is and under every edit."""
        if runs_elsewhere(request):
            raise LayerscopeError(
                "the study intervene edits the model in this process: leave engine= out."
            )
        request = canonical(request)
        spec = read_specs(request.models)[0]
        bar.begin(f"loading {spec.label}|", 1)
        model = spec.open(request)
        if model.kind != "texts":
            raise LayerscopeError(
                f"the study intervene reads texts, and {spec.label} reads {model.kind}."
            )
        ids = model.tokenize(list(request.texts or ())[:_SCANNED], max_tokens(request, model)).ids
        prompts = [np.asarray(row) for row in ids if len(row) > 2]
        sink = find_sink_activation(model, prompts, request.options)
        profiles: dict[str, Profile] = {}
        scores: dict[str, pd.DataFrame] = {}
        warnings: list[str] = []
        for edit in [NONE, *request.options["edits"]]:
            measured = _measure(request, model, spec.label, edit, sink, bar)
            profiles[edit], scores[edit], notes = measured
            warnings += [*profiles[edit].manifest["warnings"], *notes]
        runs = Profiles(request, profiles)
        table = pd.concat(_tables(runs, scores), ignore_index=True).assign(model=spec.label)
        conventions = {
            "models": {spec.label: model.identity},
            "sink": sink.facts(),
            "edited": (
                "the output of that layer's block, in every forward pass; all else is computed "
                "from the edited states"
            ),
            "valley": VALLEY,
            "differences": "condition minus none, of each prompt, then their mean",
            "scores": (
                f"mean over texts, {DEFAULT_READOUT}, × 100; intervals of changes are Student's, "
                "over tasks"
            ),
        }
        sentences = verdict(runs, scores, sink)
        return Result(table, sentences, conventions, list(dict.fromkeys(warnings)))

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Draw prompt entropy and sink ratio under every condition, and scores if there are any."""
        conditions = list(dict.fromkeys(table["condition"]))
        colors = dict(zip(conditions, ["#000000", *COLORS], strict=False))
        scores = table[table["kind"] == "score"]
        values = table[table["kind"] == "value"]
        panels = 3 if len(scores) else 2
        figure, axes = grid(1, panels, 3.7 * panels, 3.5)
        depth = manifest["conventions"]["sink"]["layer"] / int(values["layer"].max())
        titles = {"prompt_entropy": "Prompt entropy", "sink_ratio": "Sink ratio"}
        for axis, (metric, title) in zip(axes[0], titles.items(), strict=False):
            draw_panel(axis, values, (metric, "keep", title), "condition", colors)
            axis.axvline(depth, color="#888888", linewidth=0.8, linestyle=":")
        if len(scores):
            axis = axes[0, 2]
            for condition, rows in scores.groupby("condition", sort=False):
                mean = rows.groupby("depth")["value"].mean()
                axis.plot(mean.index, mean, color=colors[condition], linewidth=1.5)
            style_axis(axis, f"Mean score, {scores['task'].nunique()} tasks", "depth", "points")
        legend_below(figure, colors)
        return with_heading(figure, manifest, values["model"].iloc[0])


# by condition: tasks by layers, × 100; empty where nothing was scored
Scores = Mapping[str, pd.DataFrame]


def _measure(
    request: Request, model: LoadedModel, label: str, edit: str, sink: SinkActivation, bar: Progress
) -> tuple[Profile, pd.DataFrame, list[str]]:
    """Return the profile and the scores of one condition, and a note for each task that failed."""
    own_request = replace(request, work=request.work / edit, model_options={}, engine=None)
    with SinkEdit(model, sink, edit, request.seed):
        run = profile_of(own_request, Spec(model, label), _METRICS, bar)
        if request.options["tasks"] in ([], [NONE]):
            return run, pd.DataFrame(), []
        bar.begin(f"scores, {edit}|", 1)
        # not the common store, because these are not the unedited model's vectors
        store = own_request.work / "vectors"
        evaluation, notes = score_tasks(own_request, model, label, store=store)
    scores = 100 * evaluation.scores.pivot(index="task", columns="layer", values="score")
    return run, scores, notes


def _tables(runs: Profiles, scores: Scores) -> Iterator[pd.DataFrame]:
    """Yield, of every condition, its profile, its differences from the unedited model, its valleys
    and its scores."""
    for valley in runs.valleys:
        edit = valley.label
        tables = [profile_rows(runs[edit], edit, kind="value")]
        if edit != NONE:
            differences = runs.minus(NONE, edit, [("prompt_entropy", "raw")])
            tables.append(differences.table(kind="difference"))
        tables.append(pd.DataFrame(valley.rows(kind="valley")))
        if len(scores[edit]):
            rows = scores[edit].reset_index().melt("task", var_name="layer")
            places = pd.DataFrame(
                [whole_layer(int(layer), valley.layers) for layer in rows["layer"]]
            )
            tables.append(
                rows.assign(**places, kind="score", metric="score", normalization="raw", n=1)
            )
        for table in tables:
            yield table.assign(condition=edit).reindex(columns=_COLUMNS)


def dip_at(curve: np.ndarray, place: int) -> tuple[float, float]:
    """Return the depth of a curve at a layer below its lower shoulder: in its unit, and as a share
    of the shoulder."""
    shoulder = min(curve[: place + 1].max(), curve[place:].max())
    depth = float(shoulder - curve[place])
    return depth, depth / float(shoulder) if shoulder else 0.0


def verdict(runs: Profiles, scores: Scores, sink: SinkActivation) -> list[str]:
    """Describe the sink, then every condition's valley and scores beside those of the unedited
    model."""
    before, *edited = runs.valleys
    place = before.by_sink["keep"].place
    features = [f"{i} ({t:.0f} ×)" for i, t in zip(sink.features, sink.times, strict=True)]
    carriers = join_words(features[:5])
    if len(features) > 5:
        carriers += f" and {len(features) - 5} more"
    out = [
        f"The sink appears at layer {sink.layer} of {before.layers}: the largest token is "
        f"{sink.ratio:.1f} × the median norm there, the first token in "
        f"{100 * sink.first_share:.0f} % of texts; feature{'s' * (len(features) != 1)} {carriers} "
        "carry it (entry over the text's median entry).",
        f"Unedited: {before.sentence()}",
    ]
    dips = {
        edit: dip_at(np.nanmean(by_layer(run, "prompt_entropy", "keep"), axis=0), place)
        for edit, run in runs.items()
    }
    ratios = {edit: float(run.curve("sink_ratio")["value"].max()) for edit, run in runs.items()}
    for valley in edited:
        edit = valley.label
        changes = runs.minus(NONE, edit, [("prompt_entropy", "raw")]).values
        change = mean_of(changes["prompt_entropy", "raw", "keep"][:, place], runs.seed)
        out.append(
            f"{edit}: the largest token is at most {ratios[edit]:.1f} × the median (before: "
            f"{ratios[NONE]:.1f}); prompt entropy at layer {place} {MOVES[change.sign]}, {change} "
            f"nats, and its dip there is {dips[edit][0]:.2f} (before: {dips[NONE][0]:.2f}). "
            f"{valley.sentence()}"
        )
        if len(scores[edit]):
            out.append(f"  {_score_sentence(scores, edit)}")
    controls = [valley.label for valley in edited if valley.label in CONTROLS]
    removals = [valley.label for valley in edited if valley.label not in CONTROLS]
    if controls and len(scores[NONE]):
        for edit in removals:
            differences = join_words(
                f"{control} by {_change(scores, control, edit)}" for control in controls
            )
            out.append(
                f"{edit} against the controls, points at the last layer, over tasks: it differs "
                f"from {differences}."
            )
    answers = ["the unedited model has no clear valley"]
    if before.by_sink["keep"].is_valley:
        with_valley = {edit for edit, (_, share) in dips.items() if share >= LEAST_SHARE}
        answers = _valley_answers(place, with_valley, removals, controls)
    return [in_short("; ".join([*answers, *_score_answers(scores, removals, controls)])), *out]


def _valley_answers(
    place: int, with_valley: Collection[str], removals: Sequence[str], controls: Sequence[str]
) -> list[str]:
    """Say under which edits the valley disappears; dips at other layers do not count."""
    phrases = [] if removals else ["no removal was asked for"]
    verbs = {False: "disappears", True: "stays"}
    for stays, verb in verbs.items():
        if names := [edit for edit in removals if (edit in with_valley) is stays]:
            phrases.append(f"the valley at layer {place} {verb} under {join_words(names)}")
    for stays, verb in verbs.items():
        if names := [edit for edit in controls if (edit in with_valley) is stays]:
            plural = "s" * (len(names) != 1)
            also = "" if stays else ", too"
            phrases.append(f"it {verb} under the control{plural} {join_words(names)}{also}")
    return phrases if controls else [*phrases, "no control was run"]


def _score_answers(scores: Scores, removals: Sequence[str], controls: Sequence[str]) -> list[str]:
    """Say how the scores of the last layer change under each removal, and against every control."""
    if not len(scores[NONE]):
        return []
    signs = {edit: _change(scores, NONE, edit).sign for edit in removals}
    phrases = []
    for sign, verb in {1: "rise", -1: "fall", 0: "do not clearly move"}.items():
        edits = [edit for edit in removals if signs[edit] == sign]
        if edits:
            phrases.append(f"scores of the last layer {verb} under {join_words(edits)}")
        if not edits or not sign:
            continue
        for edit in edits if controls else []:
            alike = [control for control in controls if _change(scores, control, edit).sign != sign]
            phrases.append(
                f"under {edit} {'not ' * bool(alike)}clearly more than under "
                f"{join_words(alike or controls)}"
            )
        if not controls:
            phrases.append("which an edit of this size may do by itself")
    return phrases


def _change(scores: Scores, base: str, edit: str, layer: int | None = None) -> Interval:
    """Return the mean change over tasks at a layer, the last by default, with Student's interval if
    there are enough tasks."""
    change = (scores[edit] - scores[base]).dropna()
    column = change.columns.max() if layer is None else layer
    return student_interval(change[column].to_numpy(), _FEWEST_TASKS)


def _score_sentence(scores: Scores, edit: str) -> str:
    """Describe the best layer's and the last layer's mean score, before and after, and the layer
    with the largest change."""
    before = scores[NONE].mean()
    after = scores[edit].mean()
    best = int(before.idxmax())  # type: ignore[call-overload]
    new_best = int(after.idxmax())  # type: ignore[call-overload]
    last = int(before.index.max())
    change = (scores[edit] - scores[NONE]).dropna()
    largest = int(change.mean().abs().idxmax())  # type: ignore[call-overload]
    return (
        f"Scores, mean of {len(change)} tasks: best {before[best]:.1f} at layer {best} → "
        f"{after[new_best]:.1f} at layer {new_best}; last layer {before[last]:.1f} → "
        f"{after[last]:.1f}, {_change(scores, NONE, edit)} points over tasks; most at layer "
        f"{largest}, {_change(scores, NONE, edit, largest)}."
    )


STUDY = Intervene()
