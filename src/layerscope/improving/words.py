"""Every sentence about an improvement: for the terminal, the report and the model card."""

from __future__ import annotations

import numpy as np

from layerscope.choose.choice import Choice
from layerscope.choose.judges.agreement import NEIGHBORS
from layerscope.core.readout import Readout, describe_readout, row_words
from layerscope.core.templates import names_of
from layerscope.exporting.pushing import PRIVATE
from layerscope.improving.choose import front
from layerscope.improving.evidence import Change, Evidence, Training
from layerscope.improving.result import Improved
from layerscope.models import LoadedModel

_CLEAR_RATIO = 1.05
"""A ratio is told if it is more than this; what rounds to "1.0 ×" is no improvement."""

_SHOWN = 5
_COSTLY = 4.0
"""Encoding that costs this many times what it costs today is worth a note."""

NO_WORDS = (
    "most of these texts are hardly made of words. A part of such a text need not mean the same, "
    "so the model cannot judge itself: give a few labeled examples, or as the judge an encoder "
    "that knows such texts."
)
UNTRAINED = (
    "the model's weights are as before any training: it knows nothing of what these texts mean."
)


# The reason of a choice


def choice_reason(choice: Choice, evidence: Evidence) -> str:
    """Return why a layer and readout were chosen."""
    if evidence.kept_default:
        reason = choice.reason or "it is already the best that was found"
        return f"{reason}. Last layer, {Readout().name}."
    if evidence.training is not None:
        outcome = training_outcome(evidence.training)
        return f"Trained, taught by {evidence.training.teacher}: {outcome}."
    score = "" if evidence.score_name == evidence.judge else f"{evidence.score_name} "
    reason = (
        f"Chosen from {evidence.candidates} layers and readouts by {evidence.judge}: {score}"
        f"{evidence.before:.3f} → {evidence.after:.3f} ({_gain_parts(evidence)})."
    )
    if evidence.near > 1:
        reason += f" It is the cheapest of {evidence.near} that score practically the same."
    if evidence.search is not None:
        reason += f" Queries and documents are read as {evidence.search.readout}."
    return reason


def kept_reason(model: LoadedModel) -> str:
    """Return why a sentence encoder keeps its own reading."""
    if model.identity.get("untrained"):
        return (
            "its weights are as before any training, whatever its folder says: no reading of it "
            "means anything."
        )
    exported = model.identity.get("exported")
    if exported:
        return (
            f"it is an export of layerscope already ({exported}). Improve the model that it was "
            "cut from."
        )
    return "it comes with a pipeline for sentence embeddings, which stays."


def training_outcome(training: Training) -> str:
    """Return what a training brought, without a full stop."""
    low, high = training.over_head
    plural = "" if training.steps == 1 else "s"
    return (
        f"{training.blocks} blocks, {training.steps:,} step{plural} on {training.texts:,} texts: "
        f"agreement with the teacher {training.head:.3f} with the head alone → "
        f"{training.student:.3f} (gain {low:+.3f} to {high:+.3f}, 95 %; {training.checked} texts "
        "that nothing was fitted on)"
    )


def card_words(corpus: str, choice: Choice, keeps_texts: bool) -> str:
    """Return how the layer and readout were chosen, for the model card."""
    private = PRIVATE if keeps_texts else "No text of that sample is in this folder."
    return (
        f"Chosen by `layerscope improve` on {corpus}, without labels unless it says so. "
        f"{choice.reason} {private}"
    )


def weak_judge_note(encoder: str) -> str:
    """Return the note on an encoder that prefers the plain text to every prompt."""
    return (
        f"{encoder} agrees more with the plain text than with any prompt. Judges that go by words "
        "rather than by meaning do that, and their choice is worth less; long documents are "
        "another cause. Compare with judge='none'."
    )


# The headline


def sentence(result: Improved) -> str:
    """Return the result for somebody who knows nothing of layers, without a full stop."""
    choice = result.choice
    evidence = result.evidence
    if choice.abstained or evidence.kept_default:
        return choice.headline().removesuffix(".")
    if evidence.training is not None:
        action = f"Training the first {choice.layer} of {choice.layers} blocks on the texts"
    else:
        place = f"layer {choice.layer} of {choice.layers}"
        if choice.layer == choice.layers:
            place = "the last layer"
        query = choice.readout if evidence.search is None else evidence.search.query
        action = f"Reading {place} ({describe_readout(str(query))})"
        if query != choice.readout:
            action += f" (documents: {row_words(str(choice.readout))[0]})"
    return f"{action} {_effect(evidence)}{_cost(evidence)}"


def page_words(result: Improved) -> list[str]:
    """Return the headline and the numbers behind it, for a page."""
    choice = result.choice
    evidence = result.evidence
    if choice.abstained or evidence.kept_default:
        return [choice.headline()]
    today = "Today is the last layer, the mean of its tokens."
    if evidence.training is not None:
        return [sentence(result), f"{today} {_capital(training_outcome(evidence.training))}"]
    population = f"{result.manifest['texts']['sampled']:,} texts"
    if evidence.search is not None:
        population = f"{evidence.search.queries:,} queries that did not choose"
    change = evidence.change
    low, high = change.interval
    numbers = (
        f"{_capital(evidence.score_name)}: {change.before:.3f} today → {change.after:.3f} (95 % "
        f"interval of the gain: {low:+.3f} to {high:+.3f}), on {population}"
    )
    parts = (
        f"{today} Reading that layer in the new way brings {evidence.readout_gain:+.3f}; read "
        f"alike, layer {choice.layer} instead of {choice.layers} brings "
        f"{evidence.layer_gain:+.3f}"
    )
    neighbors = [f"Right neighbors are {words}" for words in right_neighbors(evidence)]
    return [sentence(result), *neighbors, numbers, parts]


def right_neighbors(evidence: Evidence) -> list[str]:
    """Return which neighbors are the right ones, and how many are found, if the headline says."""
    shares = evidence.neighbors
    if shares is None or _neighbor_ratio(evidence) is None:
        return []
    source = "those on which the model's most consistent readings agree"
    if shares.judge:
        source = f"those by {shares.judge}"
    return [
        f"{source}: of a text's {NEIGHBORS} nearest, {NEIGHBORS * shares.before:.1f} are found "
        f"today, {NEIGHBORS * shares.after:.1f} now"
    ]


def _neighbor_ratio(evidence: Evidence) -> float | None:
    """Return how many times as many right neighbors are found; None if there is no clear gain."""
    shares = evidence.neighbors
    if shares is None or not 0 < _CLEAR_RATIO * shares.before < shares.after:
        return None
    return shares.after / shares.before


def _effect(evidence: Evidence) -> str:
    ratio = _neighbor_ratio(evidence)
    if ratio is not None:
        return f"finds the right neighbors {ratio:.1f} × as often as today"
    return f"raises the {evidence.score_name} from {evidence.before:.3f} to {evidence.after:.3f}"


def _cost(evidence: Evidence) -> str:
    cost = evidence.relative_cost
    if cost is None:
        return ""
    if 0.95 <= cost <= 1.05:
        return ", at today's computation"
    return f", at {cost:.2f} × today's computation"


def _capital(text: str) -> str:
    return text if text[1:2].isupper() else text[:1].upper() + text[1:]  # nDCG is written so


# The facts


def score_lines(result: Improved) -> list[tuple[str, str]]:
    """Return the facts behind the choice: names and values."""
    evidence = result.evidence
    texts = result.manifest["texts"]
    search = evidence.search
    readout = str(result.choice.readout) if search is None else search.readout
    lines = [("why", result.choice.reason), ("readout", readout), ("judge", evidence.judge)]
    if not evidence.kept_default:
        lines += _gain_lines(result)
    centered = texts.get("centered_on")
    if centered:
        name = "fitted on" if evidence.teacher else "centered on"
        kind = "documents" if search is not None else "texts"
        lines.append((name, f"{centered['texts']:,} of {centered['of']:,} {kind}"))
    population = f"{texts['sampled']} texts"
    if search is not None:
        population = f"the queries that choose and {texts['sampled']} documents"
    judged = f"{evidence.candidates} layers × readouts on {population}"
    undefined = len(result.table) - evidence.candidates
    # such as layer 0 at a template's last token, which is the same for every text
    if 0 < undefined < len(result.table):
        judged += f"; {undefined} more cannot be scored"
    lines.append(("judged", judged))
    if not evidence.kept_default and evidence.near > 1:
        words = "candidates score practically the same; this is the cheapest of them"
        lines.append(("near", f"{evidence.near} {words}"))
    if not evidence.kept_default and evidence.near and evidence.training is None:
        words = "of them cannot be told from the best on these texts"
        lines.append(("tied", f"{evidence.tied} {words}"))
    return lines


def _gain_lines(result: Improved) -> list[tuple[str, str]]:
    """Return the facts about the gain and the cost."""
    evidence = result.evidence
    lines = [(evidence.score_name, _change(evidence.change)), *_search_lines(evidence)]
    training = evidence.training
    if training is not None:
        head, student = training.head - training.today, training.student - training.head
        lines.append(("of which", f"head {head:+.3f}, training {student:+.3f}"))
    else:
        lines.append(("of which", _gain_parts(evidence)))
    lines += [("right neighbors", words) for words in right_neighbors(evidence)]
    lines.append(("today", evidence.today))
    if training is not None:
        lines.append(("trained", training_outcome(training)))
    elif evidence.teacher:
        words = "the score is of texts that it was not fitted on"
        lines.append(("head", f"fitted on {evidence.teacher}; {words}"))
    cost = f"{evidence.relative_cost:.2f} × today's computation"
    lines.append(("cost per text", cost + _speed(evidence)))
    return [*lines, *_encoder_line(evidence), *_front_lines(result)]


def _search_lines(evidence: Evidence) -> list[tuple[str, str]]:
    """Return the measures on queries that did not choose, and how both sides are read."""
    search = evidence.search
    if search is None:
        return []
    population = f"{search.queries} queries that did not choose, among {search.documents:,}"
    lines = [("measured", f"on {population} documents")]
    for name, change in search.measures.items():
        if name not in evidence.score_name:
            label = f"{name} with {search.judge}" if name == "agreement" else name
            lines.append((label, _change(change)))
    if search.own is not None:
        lines.append((f"{search.judge} itself", f"nDCG@10 {search.own:.3f} on the same queries"))
    return lines + [(f"{side} read as", pattern) for side, pattern in search.prompts.items()]


def cost_notes(evidence: Evidence) -> list[str]:
    """Return what to do about a choice that makes every later encoding much slower."""
    cost = evidence.relative_cost or 0.0
    if evidence.kept_default or cost < _COSTLY:
        return []
    shorter = f"templates={','.join(names_of('tried'))} (shorter prompts)"
    return [
        f"encoding costs {cost:.1f} × today's computation. For a cheaper choice: budget=0.5, or "
        f"{shorter}."
    ]


def _change(change: Change) -> str:
    low, high = change.interval
    numbers = f"{change.before:.3f} today → {change.after:.3f}"
    return f"{numbers} (gain {low:+.3f} to {high:+.3f}, 95 %)"


def _gain_parts(evidence: Evidence) -> str:
    return f"readout {evidence.readout_gain:+.3f}, layer {evidence.layer_gain:+.3f}"


def _speed(evidence: Evidence) -> str:
    """Return the texts per second, where they are more than today's."""
    speeds = dict(evidence.texts_per_second)
    if not speeds or (evidence.relative_cost or 0) >= 1:
        return ""
    now = speeds.pop("now")
    today = speeds.pop("today")
    others = "".join(f"; {name}: {_per_second(speed)}" for name, speed in speeds.items())
    numbers = f"{_per_second(today)} → {_per_second(now)}{others}"
    return f"; {now / today:.1f} × as many texts per second here ({numbers})"


def _per_second(speed: float) -> str:
    return f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}"


def _encoder_line(evidence: Evidence) -> list[tuple[str, str]]:
    """Return that the encoder which judges may be the better answer: it was trained for this."""
    speeds = evidence.texts_per_second
    name = evidence.encoder
    if name is None or name not in speeds:
        return []
    ratio = speeds[name] / speeds["now"]
    comparison = f"fewer texts per second here ({ratio:.2f} ×)"
    if ratio > 1:
        comparison = f"{ratio:.1f} × as many texts per second here"
    words = (
        f"{name}, which judged, was itself trained for embeddings and reads {comparison}. If its "
        "license and language suit you, it may be the better answer: `layerscope compare` tells "
        "with labels of yours."
    )
    return [("before you use it", words)]


def _front_lines(result: Improved) -> list[tuple[str, str]]:
    """Return a few of the candidates that none beats at the same cost or less."""
    evidence = result.evidence
    best = front(result.table)
    if len(best) > _SHOWN:
        best = best.iloc[np.unique(np.linspace(0, len(best) - 1, _SHOWN).round().astype(int))]
    rows = [
        f"{row.cost:.2f} ×: {row.score:.3f} (layer {row.layer}, "
        f"{describe_readout(str(row.readout))})"
        for row in best.itertuples()
    ]
    name = "score by cost" if evidence.training is None else "untrained, score by cost"
    if evidence.search is not None:
        name += ", of the queries that chose"
    lines = [(name, "\n".join(rows))] if len(rows) > 1 else []
    other = evidence.cheaper
    if other is not None and evidence.relative_cost is not None:
        saved = 1 - other.relative_cost / evidence.relative_cost
        words = (
            f"layer {other.layer}, {describe_readout(other.readout)}: as good within the noise, "
            f"{saved:.0%} cheaper ({other.relative_cost:.2f} × instead of "
            f"{evidence.relative_cost:.2f} ×). To take it: budget={other.relative_cost + 0.005:.2f}"
        )
        lines.append(("cheaper", words))
    return lines
