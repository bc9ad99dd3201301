"""What the runs of a report show, in words, and the layers it points out. Nothing is said that the numbers do not bear out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from layerscope.core.readout import Readout
from layerscope.errors import LayerscopeError
from layerscope.profiling.valley import EntropyValley
from layerscope.report.sources import Block, Curves, Mark, Scores


def marks(curves: Sequence[Curves], scores: Sequence[Scores], choices: Sequence[Any] = ()) -> list[Mark]:
    """One mark per model: a choice that was given, or the one that its evaluation or its profile leads to."""
    out: dict[str, Mark] = {}
    blocks = {run.model: run.n_blocks for run in curves} | {run.model: run.n_blocks for run in scores}
    for choice in choices:
        model = choice.model or next(iter(blocks))
        if model not in blocks:
            raise LayerscopeError(f"the choice is about {model}, which is none of the runs: {', '.join(blocks)}.")
        out.setdefault(model, _mark(choice, model, blocks[model]))
    for score in scores:
        if score.model not in out and (found := _of_scores(score)) is not None:
            out[score.model] = found
    # the final norm hides the valley that label-free rules look at: other profiles of the model are asked first
    for curve in sorted(curves, key=lambda c: c.final_norm == "applied"):
        if curve.model not in out and curve.run is not None and (found := _select(curve.run)) is not None:
            out[curve.model] = _mark(found, curve.model, curve.n_blocks)
    return list(out.values())


def best_layer(score: Scores, readout: str) -> int | None:
    """The layer with the highest mean over tasks."""
    mean = score.mean(readout).dropna()
    return None if mean.empty else int(mean.index[int(mean.argmax())])


def _of_scores(score: Scores) -> Mark | None:
    chosen = None if score.run is None else _select(score.run, readouts=[score.reference])
    if chosen is not None:
        return _mark(chosen, score.model, score.n_blocks)
    best = best_layer(score, score.reference)
    if best is None:
        return None
    text = f"best by mean score over {score.mean_says}" if len(score.tasks) > 1 else f"best on {score.tasks[0]}"
    return Mark(score.model, best, score.n_blocks, "best", text, score.reference)


def _select(run: Any, **options: Any) -> Any:
    """What a selection makes of a run; None where it cannot tell (a curve is missing, an evaluation of one layer)."""
    from layerscope.selection import select

    try:
        return select(run, **options)
    except LayerscopeError:
        return None


def _mark(choice: Any, model: str, n_blocks: int) -> Mark:
    gain = {name: getattr(choice, name, None) for name in ("expected_gain", "ci_low", "ci_high", "risk_of_loss")}
    return Mark(
        model, int(choice.layer), n_blocks, "chosen", str(choice.reason), choice.readout, str(choice.rule),
        [str(w) for w in choice.warnings], abstained=bool(getattr(choice, "abstained", False)), **gain,
    )  # fmt: skip


@dataclass
class Headline:
    """What to read first, and what follows."""

    lead: str
    points: list[str] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        return " ".join([self.lead.removesuffix(".") + ".", *self.points])


@dataclass(frozen=True)
class Gain:
    """A layer against the last one under the same readout, in points (scores × 100). `half` is half its 95 % interval."""

    layer: int
    last: int
    score: float
    gain: float
    half: float
    tied: tuple[int, ...]

    @property
    def clear(self) -> bool:
        """Whether the interval lies above zero."""
        return math.isfinite(self.half) and self.gain > self.half


def headline(
    curves: Sequence[Curves], scores: Sequence[Scores], marks: Sequence[Mark] = (), blocks: Sequence[Block] = ()
) -> Headline:
    """A sentence per model, the largest clear gain first; the valley is told where a profile shows one."""
    models = list(dict.fromkeys([*(s.model for s in scores), *(c.model for c in curves)]))
    several = len(models) > 1
    said: list[tuple[float, list[str]]] = []
    for model in models:
        own_scores = [s for s in scores if s.model == model]
        own_curves = [c for c in curves if c.model == model]
        chosen = next((m for m in marks if m.model == model and m.kind == "chosen"), None)
        parts: list[str] = []
        weight = 0.0
        if own_scores:
            gains = [reference_gain(s) for s in own_scores]
            best = max(range(len(gains)), key=lambda i: -math.inf if (g := gains[i]) is None else g.gain)
            parts += score_words(own_scores[best], chosen)
            gain = gains[best]
            weight = 1.0 + (gain.gain if gain is not None and gain.clear else 0.0)
        parts += _valley_words(own_curves, with_numbers=not own_scores)
        if chosen is not None and not own_scores:
            parts.append(_choice_words(chosen))
        if parts:
            between = ", " if parts[0].startswith("layer ") else ": "
            parts[0] = f"{model}{between}{parts[0]}" if several else parts[0]
            said.append((weight, parts))
    said.sort(key=lambda item: -item[0])
    said += [(-1.0, [_block_words(block, alone=not said and len(blocks) == 1)]) for block in blocks if block.words]
    if not said:
        return Headline(f"{', '.join(models)}: no metric here has a headline of its own; the curves are below.")
    lead, *rest = said[0][1]
    points = [_sentence(part) for part in rest] + [_sentence("; ".join(parts)) for _, parts in said[1:]]
    return Headline(lead if several else _sentence(lead).removesuffix("."), points)


def _block_words(block: Block, alone: bool) -> str:
    """The answer of a study, of probes or of a sweep; what it is about stands before it where there is more than one."""
    first = block.words[0].removesuffix(".")
    return first if alone else f"{block.title}: {first}"


def _sentence(text: str) -> str:
    """A capital and a full stop; a model's name stays as it is."""
    first = text.split(maxsplit=1)[0]
    plain = first.isalpha() and first.islower()
    return (text[:1].upper() + text[1:] if plain else text) + "."


def reference_gain(score: Scores, layer: int | None = None) -> Gain | None:
    """The best (or a given) layer against the last under the reference readout, averaged over tasks."""
    return gain_of(score, score.reference, layer)


def gain_of(score: Scores, readout: str, layer: int | None = None) -> Gain | None:
    """A layer against the last one under one readout. Intervals of several tasks are put together as independent."""
    mean = score.mean(readout).dropna()
    if mean.empty:
        return None
    last = int(max(score.grid(readout).columns))
    at = int(mean.index[int(mean.argmax())]) if layer is None or layer not in mean.index else layer
    if last not in mean.index:
        return None
    rows = score.table[(score.table["readout"] == readout) & (score.table["layer"] == at)]
    rows = rows[rows["task"].isin(score.mean_tasks or score.tasks)]
    halves = (rows["ci_high"] - rows["ci_low"]).to_numpy(dtype=float) / 2
    half = 100 * math.sqrt(float((halves**2).sum())) / len(rows) if len(rows) else math.nan
    own = score.table[(score.table["readout"] == readout) & score.table["tied"]]
    counts = own.groupby("layer")["task"].nunique()
    tied = tuple(int(k) for k, n in counts.items() if n == len(rows))  # type: ignore[call-overload]
    return Gain(at, last, 100 * float(mean[at]), 100 * float(mean[at] - mean[last]), half, tied)


def score_words(score: Scores, chosen: Mark | None = None) -> list[str]:
    """The layer, then what another way of reading the same weights gives."""
    known = None if chosen is None or chosen.readout not in (None, score.reference) else chosen.layer
    gain = reference_gain(score, known)
    if gain is None:
        return []
    if gain.layer == gain.last:  # kept, perhaps, because nothing is clearly better: then the best is named with its gain
        gain = reference_gain(score) or gain
    where = f"on {score.tasks[0]}" if len(score.tasks) == 1 else f"on average over {score.mean_says}"
    spread = f" ± {gain.half:.1f}" if math.isfinite(gain.half) else ""
    if gain.layer == gain.last:
        alone = _alone(gain, len(score.tasks) > 1)
        parts = [f"the last layer, {gain.layer} of {score.n_blocks}, is the best {where} ({gain.score:.1f}){alone}"]
    elif gain.clear:
        parts = [f"layer {gain.layer} of {score.n_blocks}: {gain.gain:+.1f}{spread} {where} over the last layer{_blocks(gain)}"]
    elif not math.isfinite(gain.half) and gain.gain > 0:
        parts = [
            f"layer {gain.layer} of {score.n_blocks}: {gain.gain:+.1f} {where} over the last layer{_blocks(gain)}, "
            "without an interval to judge it by"
        ]
    else:
        parts = [
            f"no layer is clearly better than the last {where}: layer {gain.layer} of {score.n_blocks} has "
            f"{gain.gain:+.1f}{spread}"
        ]
    return parts + _readout_words(score, gain)


def _choice_words(mark: Mark) -> str:
    """A choice that rests on no scores of this model."""
    if mark.layer == mark.n_blocks:
        return f"without labels the last layer, {mark.layer} of {mark.n_blocks}, is the safe choice"
    text = f"without labels the best guess is layer {mark.layer} of {mark.n_blocks}"
    if mark.expected_gain is None:
        return text
    text += f": {mark.expected_gain:+.1f} expected over the last layer"
    if mark.ci_low is not None and mark.ci_high is not None and mark.risk_of_loss is not None:
        text += f" (95 %: {mark.ci_low:+.1f} to {mark.ci_high:+.1f}), at {100 * mark.risk_of_loss:.0f} % risk of a loss"
    return text


def _alone(gain: Gain, several: bool) -> str:
    """What else ties with the last layer, where it is the best."""
    each = " on every task" if several else ""
    earlier = [layer for layer in gain.tied if layer != gain.last]
    if not earlier:
        return f", and no earlier one ties with it{each}" if gain.tied else ""
    first = min(earlier)
    return f"; layer {first} ties with it{each}{_blocks_of(first, gain.last)}"


def _blocks(gain: Gain) -> str:
    return _blocks_of(gain.layer, gain.last)


def _blocks_of(layer: int, last: int) -> str:
    if layer <= 0:
        return " with no block at all"
    ratio = last / layer
    if ratio < 1.15:
        return ""
    return f" with {ratio:.0f} × fewer blocks" if ratio >= 2.95 else f" with {ratio:.1f} × fewer blocks"


def _readout_words(score: Scores, gain: Gain) -> list[str]:
    """The readout with the highest score of all, against the last layer of the reference."""
    others = {name: found for name in score.readouts if (found := gain_of(score, name)) is not None}
    if len(others) < 2:
        return []
    best = max(others, key=lambda name: others[name].score)
    own = gain_of(score, score.reference)
    if best == score.reference or own is None or others[best].score <= own.score:
        return []
    more = others[best].score - (gain.score - gain.gain)
    readout = Readout.parse(best)
    same_template = readout.template == Readout.parse(score.reference).template
    how = f"{readout.pooling} pooling, {readout.final_norm}" + (", centered" if readout.centering == "corpus" else "")
    name = f"reading it by {how}" if same_template else f"the {readout.template} template ({how})"
    return [f"{more:+.1f} over that last layer with {name} at layer {others[best].layer}"]


def _valley_words(curves: Sequence[Curves], with_numbers: bool) -> list[str]:
    """The deepest valley among a model's profiles, or that there is none."""
    found: list[tuple[Curves, EntropyValley]] = [(c, v) for c in curves if (v := c.valley) is not None]
    if not found:
        measured = any("prompt_entropy" in set(c.table["metric"]) for c in curves)
        return ["prompt entropy has no valley"] if measured and with_numbers else []
    curve, valley = max(found, key=lambda item: item[1].depth)
    under = f" (final norm {curve.final_norm})" if len({c.final_norm for c in curves}) > 1 else ""
    if valley.is_sink:
        text = f"the entropy valley at {valley.layer}{under} is the attention sink"
        numbers = f": {valley.value:.2f} nats, {valley.drop_value:.2f} without that one token"
    elif valley.is_sink is None:
        text, numbers = f"prompt entropy has a valley at {valley.layer}{under}", f": {valley.value:.2f} nats"
    else:
        text = f"the entropy valley at {valley.layer}{under} is not the attention sink"
        numbers = f": {valley.value:.2f} nats, {valley.drop_value:.2f} without the largest token"
    return [text + (numbers if with_numbers else "")]
