"""What the runs of a report show, in words, and the layers it points out. Nothing is said that the
numbers do not bear out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from layerscope.choose.choice import Choice
from layerscope.choose.select import select
from layerscope.core.statistics import INTERVAL
from layerscope.errors import LayerscopeError
from layerscope.profiling.run import EntropyValley
from layerscope.report.sources import Block, Curves, Scores

BEST = "best"
"""The rule of a choice that rests on published scores alone: the highest mean, of which nothing is
claimed."""


def marks(
    curves: Sequence[Curves],
    scores: Sequence[Scores],
    choices: Sequence[Choice] = (),
    parts: Sequence[Block] = (),
) -> list[Choice]:
    """One choice per model, which every view points out: one that was given, an improvement's, or
    the one that its evaluation or profile leads to."""
    out: dict[str, Choice] = {}
    blocks = {run.model: run.n_blocks for run in curves} | {
        run.model: run.n_blocks for run in scores
    }
    improved = {part.model: part.choice for part in parts if part.choice is not None}
    blocks |= {model: choice.layers for model, choice in improved.items() if model not in blocks}
    for choice in choices:
        model = choice.model or next(iter(blocks))
        if model not in blocks:
            raise LayerscopeError(
                f"the choice is for {model}, which is not among these runs: {', '.join(blocks)}."
            )
        out.setdefault(model, choice)
    for model, choice in improved.items():
        out.setdefault(model, choice)
    for score in scores:
        if score.model not in out and (found := _of_scores(score)) is not None:
            out[score.model] = found
    # the final norm hides the valley that label-free rules look at: other profiles of the model are
    # asked first
    for curve in sorted(curves, key=lambda c: c.final_norm == "applied"):
        if (
            curve.model not in out
            and curve.run is not None
            and (found := _select(curve.run)) is not None
        ):
            out[curve.model] = found
    return [replace(choice, model=model, layers=blocks[model]) for model, choice in out.items()]


def kind_of(choice: Choice) -> str:
    """What a view calls the layer: best by published scores, or chosen by a rule."""
    return "best" if choice.rule == BEST else "chosen"


def best_layer(score: Scores, readout: str) -> int | None:
    """The layer with the highest mean over tasks."""
    mean = score.mean(readout).dropna()
    return None if mean.empty else int(mean.index[int(mean.argmax())])


def _of_scores(score: Scores) -> Choice | None:
    chosen = None if score.run is None else _select(score.run)
    if chosen is not None:
        return chosen
    best = best_layer(score, score.reference)
    if best is None:
        return None
    text = (
        f"best by mean score over {score.mean_says}"
        if len(score.tasks) > 1
        else f"best on {score.tasks[0]}"
    )
    return Choice(best, score.reference, rule=BEST, reason=text)


def _select(run: Any) -> Choice | None:
    """What a selection makes of a run; None where it cannot tell (a curve is missing, an evaluation
    of one layer)."""
    try:
        return select(run)
    except LayerscopeError:
        return None


@dataclass
class Headline:
    """What to read first, and what follows."""

    lead: str
    points: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Gain:
    """A layer against the last one under the same readout, in points (scores × 100). `half` is half
    its 95 % interval."""

    layer: int
    last: int
    score: float
    gain: float
    half: float


def page_headline(
    curves: Sequence[Curves],
    scores: Sequence[Scores],
    marks: Sequence[Choice] = (),
    blocks: Sequence[Block] = (),
) -> Headline:
    """A sentence per model: an improvement first, then the largest clear gain; the valley is told
    where a profile shows one."""
    improved = {block.model: block for block in blocks if block.choice is not None and block.lead}
    models = list(
        dict.fromkeys([*improved, *(s.model for s in scores), *(c.model for c in curves)])
    )
    several = len(models) > 1
    said: list[tuple[float, list[str]]] = []
    for model in models:
        own_scores = [s for s in scores if s.model == model]
        own_curves = [c for c in curves if c.model == model]
        chosen = next((m for m in marks if m.model == model and kind_of(m) == "chosen"), None)
        parts: list[str] = []
        weight = 0.0
        if model in improved:
            # what the page is about; the scores measure that choice, and the profile explains it
            parts = [text.removesuffix(".") for text in improved[model].lead]
            if several and not parts[0].startswith(model):
                parts[0] = f"{model}: {parts[0][:1].lower()}{parts[0][1:]}"
            if own_scores and chosen is not None:
                parts += measured_words(own_scores[0], chosen)
            said.append((math.inf, parts + _valley_words(own_curves, with_numbers=False)))
            continue
        if own_scores:
            parts += score_words(own_scores[0], chosen)
            gain = chosen.expected_gain if chosen is not None and not chosen.abstained else None
            weight = 1.0 + (gain or 0.0)
        parts += _valley_words(own_curves, with_numbers=not own_scores)
        if chosen is not None and not own_scores:
            parts.append(f"without labels: {_told(chosen)}")
        if parts:
            parts[0] = f"{model}: {parts[0]}" if several else parts[0]
            said.append((weight, parts))
    said.sort(key=lambda item: -item[0])
    rest_of = [block for block in blocks if block.words and improved.get(block.model) is not block]
    said += [
        (-1.0, [_block_words(block, alone=not said and len(blocks) == 1)]) for block in rest_of
    ]
    if not said:
        return Headline(
            f"{', '.join(models)}: no metric here has a headline of its own; the curves are below."
        )
    lead, *rest = said[0][1]
    points = [_sentence(part) for part in rest] + [
        _sentence("; ".join(parts)) for _, parts in said[1:]
    ]
    return Headline(lead if several else _sentence(lead).removesuffix("."), points)


def _block_words(block: Block, alone: bool) -> str:
    """The answer of a block, such as probes; what it is about stands before it where there
    is more than one."""
    first = [*block.lead, *block.words][0].removesuffix(".")
    return first if alone else f"{block.title}: {first}"


def _sentence(text: str) -> str:
    """A capital and a full stop; a model's name stays as it is."""
    first = text.split(maxsplit=1)[0]
    plain = first.isalpha() and first.islower()
    return (text[:1].upper() + text[1:] if plain else text) + "."


def gain_of(score: Scores, readout: str, layer: int | None = None) -> Gain | None:
    """A layer against the last one under one readout. Intervals of several tasks are put together
    as independent."""
    mean = score.mean(readout).dropna()
    if mean.empty:
        return None
    last = int(max(score.grid(readout).columns))
    if last not in mean.index:
        return None
    at = layer if layer is not None and layer in mean.index else int(mean.index[int(mean.argmax())])
    rows = score.table[(score.table["readout"] == readout) & (score.table["layer"] == at)]
    rows = rows[rows["task"].isin(score.mean_tasks or score.tasks)]
    low, high = (rows[name].to_numpy(dtype=float) for name in INTERVAL)
    halves = (high - low) / 2
    half = 100 * math.sqrt(float((halves**2).sum())) / len(rows) if len(rows) else math.nan
    return Gain(at, last, 100 * float(mean[at]), 100 * float(mean[at] - mean[last]), half)


def score_words(score: Scores, chosen: Choice | None = None) -> list[str]:
    """What the selection chose from these scores; where nothing could be chosen (published scores),
    what the means show."""
    if chosen is not None and chosen.rule == "measured":
        why = (
            [chosen.reason.removesuffix(".")] if chosen.abstained and chosen.reason else []
        )  # too long for a headline
        return [f"{_told(chosen)}, {_where(score)}", *why]
    given = (
        chosen.layer if chosen is not None and chosen.readout in (None, score.reference) else None
    )
    gain = gain_of(score, score.reference, given)
    if gain is None:
        return []
    if gain.layer == gain.last:
        return [
            f"the last layer, {gain.layer} of {score.n_blocks}, is the best {_where(score)} ({gain.score:.1f})"
        ]
    sure = f" ± {gain.half:.1f}" if math.isfinite(gain.half) else ""
    if sure and gain.gain <= gain.half:
        told = f"layer {gain.layer} of {score.n_blocks} has {gain.gain:+.1f}{sure}"
        return [f"no layer is clearly better than the last {_where(score)}: {told}"]
    told = f"layer {gain.layer} of {score.n_blocks}: {gain.gain:+.1f}{sure} {_where(score)} over the last layer"
    return [told + ("" if sure else ", without an interval to judge it by")]


def measured_words(score: Scores, chosen: Choice) -> list[str]:
    """How a choice that was made without these scores does on them, against the last layer read the
    default way."""
    readout = str(chosen.readout)
    if readout not in score.readouts:
        return [
            f"{score.label or score.model} was not scored under {readout}: its scores say nothing about this choice"
        ]
    own, default = score.mean(readout).dropna(), score.mean(score.reference).dropna()
    last = int(max(score.grid(score.reference).columns))
    if chosen.layer not in own.index or last not in default.index:
        return []
    now, today = 100 * float(own[chosen.layer]), 100 * float(default[last])
    return [
        f"measured {_where(score)}: {now:.1f}, against {today:.1f} at the last layer under {score.reference}"
    ]


def _where(score: Scores) -> str:
    return f"on {score.tasks[0]}" if len(score.tasks) == 1 else f"on average over {score.mean_says}"


def _told(choice: Choice) -> str:
    """Return what a choice says of itself, without the model's name."""
    return replace(choice, model="").headline().removesuffix(".")


def _valley_words(curves: Sequence[Curves], with_numbers: bool) -> list[str]:
    """The deepest valley among a model's profiles, or that there is none."""
    found: list[tuple[Curves, EntropyValley]] = [
        (c, v) for c in curves if (v := c.valley) is not None
    ]
    if not found:
        measured = any("prompt_entropy" in set(c.table["metric"]) for c in curves)
        return ["prompt entropy has no valley"] if measured and with_numbers else []
    curve, valley = max(found, key=lambda item: item[1].depth)
    under = f" (final norm {curve.final_norm})" if len({c.final_norm for c in curves}) > 1 else ""
    if valley.is_sink:
        text = f"the entropy valley at layer {valley.layer}{under} is the attention sink"
        numbers = f": {valley.value:.2f} nats, {valley.drop_value:.2f} without that one token"
    elif valley.is_sink is None:
        text, numbers = (
            f"prompt entropy has a valley at layer {valley.layer}{under}",
            f": {valley.value:.2f} nats",
        )
    else:
        text = f"the entropy valley at layer {valley.layer}{under} is not the attention sink"
        numbers = f": {valley.value:.2f} nats, {valley.drop_value:.2f} without the largest token"
    return [text + (numbers if with_numbers else "")]
