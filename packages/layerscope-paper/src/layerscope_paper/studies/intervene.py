"""Does the valley go, and do the scores move, when the sink activation is taken out inside the
forward pass?

Finds the layer where one token becomes massive and the few features that carry it, then edits
exactly these entries there, in every pass, and profiles and scores the model again (`sink_edit.py`
has the edits). `remove`, `clamp` and `replace` take the sink away. `control`, `matched` and `moved`
leave it massive and change something else: what they do, an edit does by itself.

Table: `value` rows (the profile under each condition), `difference` rows (condition minus `none`,
prompt by prompt), `valley` rows, and `score` rows (task and layer, × 100). Figure: prompt entropy,
sink ratio and mean score over depth, a line per condition. Verdict: where the sink is, what becomes
of the valley and of the scores, and whether removing the sink does more than the controls.

    layerscope-paper study intervene smollm2-135m -n 12 --max-length 64 --set items=40
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.readout import DEFAULT_READOUT
from layerscope.core.statistics import INTERVAL, Interval
from layerscope.core.valley import LEAST_SHARE
from layerscope.errors import LayerscopeError
from layerscope.models import LoadedModel
from layerscope.profiling import Profile
from layerscope.progress import Progress
from layerscope_paper.drawing import COLORS, style_axis
from layerscope_paper.studies.base import DATA_DIR, Option, Result, Study
from layerscope_paper.studies.shared.figures import (
    Figure,
    draw_band,
    draw_panel,
    grid,
    legend_below,
    with_heading,
)
from layerscope_paper.studies.shared.models import (
    Request,
    Spec,
    canonical,
    most_tokens,
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
_SCANNED = 32  # texts that the sink is looked for in
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
        given = read_specs(request.models)[0]
        bar.begin(f"loading {given.label}|", 1)
        model = given.open(request)
        if model.kind != "texts":
            raise LayerscopeError(
                f"the study intervene reads texts, and {given.label} reads {model.kind}."
            )
        sink = find_sink_activation(model, _prompts(request, model), request.options)
        conditions = [NONE, *request.options["edits"]]
        found = {
            edit: _measure(request, model, given.label, edit, sink, bar) for edit in conditions
        }
        runs = Profiles(request, {edit: run for edit, (run, _, _) in found.items()})
        scores = {edit: own for edit, (_, own, _) in found.items()}
        table = pd.concat([rows.assign(model=given.label) for rows in _tables(runs, scores)])[
            _COLUMNS
        ].reset_index(drop=True)
        conventions = {
            "models": {given.label: model.identity},
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
        warnings = list(
            dict.fromkeys(
                line
                for run, _, notes in found.values()
                for line in [*run.manifest["warnings"], *notes]
            )
        )
        return Result(table, verdict(runs, scores, sink), conventions, warnings)

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Prompt entropy and sink ratio under every condition, and scores where there are some."""
        conditions = list(dict.fromkeys(table["condition"]))
        colors = dict(zip(conditions, ["#000000", *COLORS], strict=False))
        scores = table[table["kind"] == "score"]
        values = table[table["kind"] == "value"]
        panels = 3 if len(scores) else 2
        figure, axes = grid(1, panels, 3.7 * panels, 3.5)
        blocks = int(values["layer"].max())
        for axis, metric, title in zip(
            axes[0],
            ("prompt_entropy", "sink_ratio"),
            ("Prompt entropy", "Sink ratio"),
            strict=False,
        ):
            draw_panel(axis, values, (metric, "keep", title), "condition", colors)
            axis.axvline(
                manifest["conventions"]["sink"]["layer"] / blocks,
                color="#888888",
                linewidth=0.8,
                linestyle=":",
            )
        if len(scores):
            for condition, rows in scores.groupby("condition", sort=False):
                mean = rows.groupby("depth", as_index=False)["value"].mean()
                draw_band(
                    axes[0, 2],
                    mean.assign(**dict.fromkeys(INTERVAL, mean["value"])),
                    colors[condition],
                )
            style_axis(
                axes[0, 2], f"Mean score, {scores['task'].nunique()} tasks", "depth", "points"
            )
        legend_below(figure, colors)
        return with_heading(figure, manifest, values["model"].iloc[0])


def _prompts(request: Request, model: LoadedModel) -> list[np.ndarray]:
    ids = model.tokenize(list(request.texts or ())[:_SCANNED], most_tokens(request, model)).ids
    return [np.asarray(row) for row in ids if len(row) > 2]


# --- measuring
#   ------------------------------------------------------------------------------------------------------------------


Scores = Mapping[
    str, pd.DataFrame
]  # by condition: tasks by layers, × 100; empty where nothing was scored


def _measure(
    request: Request, model: LoadedModel, label: str, edit: str, sink: SinkActivation, bar: Progress
) -> tuple[Profile, pd.DataFrame, list[str]]:
    """The profile and the scores of one condition, and which tasks could not be scored."""
    own = replace(request, work=request.work / edit)
    with SinkEdit(model, sink, edit, request.seed):
        run = profile_of(
            replace(own, model_options={}, engine=None), Spec(model, label), _METRICS, bar
        )
        if request.options["tasks"] in ([], [NONE]):
            return run, pd.DataFrame(), []
        bar.begin(f"scores, {edit}|", 1)
        # never the common store: these vectors are not the model's own
        evaluation, notes = score_tasks(own, model, label, store=own.work / "vectors")
        return (
            run,
            100 * evaluation.scores.pivot(index="task", columns="layer", values="score"),
            notes,
        )


def _tables(runs: Profiles, scores: Scores) -> Iterator[pd.DataFrame]:
    """Of every condition: its profile, its differences from the model as it is, its valleys and its
    scores."""
    for valley in runs.valleys:
        edit = valley.label
        parts = [
            profile_rows(runs[edit], edit, kind="value"),
            pd.DataFrame(valley.rows(kind="valley")),
        ]
        if edit != NONE:
            parts.insert(
                1, runs.minus(NONE, edit, [("prompt_entropy", "raw")]).table(kind="difference")
            )
        if len(scores[edit]):
            rows = scores[edit].reset_index().melt("task", var_name="layer")
            places = pd.DataFrame(
                [whole_layer(int(layer), valley.layers) for layer in rows["layer"]]
            )
            parts.append(
                rows.assign(**places, kind="score", metric="score", normalization="raw", n=1)
            )
        for part in parts:
            yield part.assign(condition=edit).reindex(columns=_COLUMNS)


def dip_at(curve: np.ndarray, place: int) -> tuple[float, float]:
    """How far a curve at a layer lies below its lower shoulder: in its unit, and as a share of the
    shoulder."""
    shoulder = min(curve[: place + 1].max(), curve[place:].max())
    return float(shoulder - curve[place]), float(
        (shoulder - curve[place]) / shoulder
    ) if shoulder else 0.0


def verdict(runs: Profiles, scores: Scores, sink: SinkActivation) -> list[str]:
    """Where the sink is, then every condition's valley and scores beside those of the model as it
    is."""
    before, *others = runs.valleys
    place = before.kept.place
    carriers = join_words(
        [f"{i} ({t:.0f} ×)" for i, t in list(zip(sink.features, sink.times, strict=True))[:5]]
    )
    more = f" and {len(sink.features) - 5} more" if len(sink.features) > 5 else ""
    out = [
        f"The sink appears at layer {sink.layer} of {before.layers}: the largest token is "
        f"{sink.ratio:.1f} × the median norm there, the first token in {100 * sink.first:.0f} % of "
        f"texts; feature{'s' * (len(sink.features) != 1)} {carriers}{more} carry it (entry over "
        "the text's median entry).",
        f"As it is: {before.sentence()}",
    ]
    dips = {
        edit: dip_at(np.nanmean(by_layer(run, "prompt_entropy", "keep"), axis=0), place)
        for edit, run in runs.items()
    }
    ratios = {edit: float(run.curve("sink_ratio")["value"].max()) for edit, run in runs.items()}
    for valley in others:
        edit = valley.label
        changes = runs.minus(NONE, edit, [("prompt_entropy", "raw")]).values
        there = mean_of(changes["prompt_entropy", "raw", "keep"][:, place], runs.seed)
        out.append(
            f"{edit}: the largest token is at most {ratios[edit]:.1f} × the median (before: "
            f"{ratios[NONE]:.1f}); prompt entropy at layer {place} {MOVES[there.sign]}, {there} "
            f"nats, and its dip there is {dips[edit][0]:.2f} (before: {dips[NONE][0]:.2f}). "
            f"{valley.sentence()}"
        )
        if len(scores[edit]):
            out.append(f"  {_score_sentence(scores, edit)}")
    removals, controls = (
        [v.label for v in others if (v.label in CONTROLS) is wanted] for wanted in (False, True)
    )
    if controls and len(scores[NONE]):
        for edit in removals:
            parts = join_words(
                f"{control} by {_change(scores, control, edit)}" for control in controls
            )
            out.append(
                f"{edit} against the controls, points at the last layer, over tasks: it differs "
                f"from {parts}."
            )
    answer = "the model has no clear valley to begin with"
    if before.kept.is_valley:
        answer = _valley_answer(
            place,
            {edit for edit, (_, share) in dips.items() if share >= LEAST_SHARE},
            removals,
            controls,
        )
    return [in_short("; ".join([answer, *_score_answer(scores, removals, controls)])), *out]


def _valley_answer(
    place: int, left: Collection[str], removals: Sequence[str], controls: Sequence[str]
) -> str:
    """What becomes of the valley where it was; `left` are the conditions that leave it. Dips
    elsewhere do not count for it."""
    parts = [] if removals else ["no edit but controls was asked for"]
    told = ((False, "goes"), (True, "stays"))
    for there, does in told:
        if names := [edit for edit in removals if (edit in left) is there]:
            parts.append(f"the valley at layer {place} {does} under {join_words(names)}")
    for there, does in told:
        if names := [edit for edit in controls if (edit in left) is there]:
            plural = "s" * (len(names) != 1)
            also = ", too" * (not there)
            parts.append(f"it {does} under the control{plural} {join_words(names)}{also}")
    return "; ".join(parts if controls else [*parts, "no control was run"])


def _score_answer(scores: Scores, removals: Sequence[str], controls: Sequence[str]) -> list[str]:
    """What the scores of the last layer do under each removal, and whether they do it more than
    under every control."""
    if not len(scores[NONE]):
        return []
    signs = {edit: _change(scores, NONE, edit).sign for edit in removals}
    parts = []
    for sign, word in {1: "rise", -1: "fall", 0: "do not clearly move"}.items():
        own = [edit for edit in removals if signs[edit] == sign]
        if own:
            parts.append(f"scores of the last layer {word} under {join_words(own)}")
        if not own or not sign:
            continue
        for edit in own if controls else []:
            alike = [control for control in controls if _change(scores, control, edit).sign != sign]
            parts.append(
                f"under {edit} {'not ' * bool(alike)}clearly more than under "
                f"{join_words(alike or controls)}"
            )
        if not controls:
            parts.append("which an edit of this size may do by itself")
    return parts


def _change(scores: Scores, base: str, edit: str, layer: int | None = None) -> Interval:
    """The mean change over tasks at a layer, the last by default, with Student's interval where
    there are enough tasks."""
    change = (scores[edit] - scores[base]).dropna()
    return student_interval(
        change[change.columns.max() if layer is None else layer].to_numpy(), _FEWEST_TASKS
    )


def _score_sentence(scores: Scores, edit: str) -> str:
    """The best layer's and the last layer's mean score, before and after, and where the change is
    largest."""
    one = scores[NONE].mean()
    two = scores[edit].mean()
    best = int(one.idxmax())  # type: ignore[call-overload]
    now = int(two.idxmax())  # type: ignore[call-overload]
    last = int(one.index.max())
    change = (scores[edit] - scores[NONE]).dropna()
    worst = int(change.mean().abs().idxmax())  # type: ignore[call-overload]
    return (
        f"Scores, mean of {len(change)} tasks: best {one[best]:.1f} at layer {best} → "
        f"{two[now]:.1f} at layer {now}; last layer {one[last]:.1f} → {two[last]:.1f}, "
        f"{_change(scores, NONE, edit)} points over tasks; most at layer {worst}, "
        f"{_change(scores, NONE, edit, worst)}."
    )


STUDY = Intervene()
