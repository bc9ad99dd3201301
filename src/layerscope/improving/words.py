"""Every sentence about an improvement: for the terminal, the report and the model card."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from rich.markup import escape
from rich.table import Table

from layerscope.choose.choice import Choice
from layerscope.choose.judges.agreement import NEIGHBORS
from layerscope.core.readout import Readout, describe_readout, row_words
from layerscope.core.templates import names_of
from layerscope.exporting.job import Exported
from layerscope.exporting.publishing import PRIVATE
from layerscope.exporting.servers import opening_words
from layerscope.improving.decision import Change, Evidence, Training
from layerscope.improving.result import Improved
from layerscope.terminal import Console, print_facts, print_notes

_CLEAR_RATIO = 1.05
"""A ratio is told if it is more than this; what rounds to "1.0 ×" is no improvement."""

_COSTLY = 4.0
"""Encoding that costs this many times what it costs today is worth a note."""

_WIDTH = 64

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
        return f"{reason.removesuffix('.')}. Last layer, {choice.readout}."
    if evidence.training is not None:
        outcome = training_outcome(evidence.training)
        return f"Trained, taught by {evidence.training.teacher}: {outcome}."
    score = "" if evidence.score_name == evidence.judge else f"{evidence.score_name} "
    count = int(choice.table["score"].notna().sum())
    parts = f"readout {evidence.readout_gain:+.3f}, layer {evidence.layer_gain:+.3f}"
    reason = (
        f"Chosen from {count} layers and readouts by {evidence.judge}: {score}"
        f"{evidence.before:.3f} → {evidence.after:.3f} ({parts})."
    )
    if evidence.near > 1:
        reason += f" It is the cheapest of {evidence.near} that score practically the same."
    if evidence.search is not None:
        reason += f" Queries and documents are read as {evidence.search.readout}."
    return reason


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
    ratio = _neighbor_ratio(evidence)
    effect = f"finds the right neighbors {ratio:.1f} × as often as today"
    if ratio <= _CLEAR_RATIO:
        change = f"from {evidence.before:.3f} to {evidence.after:.3f}"
        effect = f"raises the {evidence.score_name} {change}"
    cost = evidence.relative_cost or 1.0
    amount = "" if 0.95 <= cost <= 1.05 else f"{cost:.2f} × "
    return f"{action} {effect}, at {amount}today's computation"


def page_words(result: Improved) -> list[str]:
    """Return the headline and the numbers behind it, for a page."""
    choice = result.choice
    evidence = result.evidence
    if choice.abstained or evidence.kept_default:
        return [choice.headline()]
    today = "Today is the last layer, the mean of its tokens"
    if evidence.training is not None:
        return [sentence(result), today, training_outcome(evidence.training)]
    population = f"{result.manifest['texts']['sampled']:,} texts"
    if evidence.search is not None:
        population = f"{evidence.search.queries:,} queries that did not choose"
    neighbors = [f"Right neighbors are {words}" for words in right_neighbors(evidence)]
    numbers = f"{evidence.score_name}: {_change(evidence.change)}, on {population}"
    return [sentence(result), *neighbors, numbers, today]


def right_neighbors(evidence: Evidence) -> list[str]:
    """Return which neighbors are the right ones, and how many are found, if the headline says."""
    shares = evidence.neighbors
    if shares is None or _neighbor_ratio(evidence) <= _CLEAR_RATIO:
        return []
    source = "those on which the model's most consistent readings agree"
    if shares.judge:
        source = f"those by {shares.judge}"
    return [
        f"{source}: of a text's {NEIGHBORS} nearest, {NEIGHBORS * shares.before:.1f} are found "
        f"today, {NEIGHBORS * shares.after:.1f} now"
    ]


def _neighbor_ratio(evidence: Evidence) -> float:
    """Return how many times as many right neighbors are found; 0 if that is not known."""
    shares = evidence.neighbors
    if shares is None or not shares.before > 0:
        return 0.0
    return shares.after / shares.before


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
    scored = int(result.table["score"].notna().sum())
    judged = f"{scored} layers × readouts on {population}"
    # such as layer 0 at a template's last token, which is the same for every text
    if 0 < scored < len(result.table):
        judged += f"; {len(result.table) - scored} more cannot be scored"
    lines.append(("judged", judged))
    return lines


def _gain_lines(result: Improved) -> list[tuple[str, str]]:
    """Return the facts about the gain and the cost."""
    evidence = result.evidence
    lines = [
        (evidence.score_name, _change(evidence.change)),
        *_certainty_lines(evidence),
        *_search_lines(evidence),
        *(("right neighbors", words) for words in right_neighbors(evidence)),
        ("today", f"layer {result.choice.layers} under {Readout().name}"),
    ]
    if evidence.training is None and evidence.teacher:
        words = "the score is of texts that it was not fitted on"
        lines.append(("head", f"fitted on {evidence.teacher}; {words}"))
    cost = f"{evidence.relative_cost:.2f} × today's computation"
    lines.append(("cost per text", cost + _speed(evidence)))
    return [*lines, *_encoder_line(evidence), *_cheaper_line(result)]


def _certainty_lines(evidence: Evidence) -> list[tuple[str, str]]:
    """Return how sure the choice is, and whether its gain is only expected."""
    lines = []
    if evidence.interval is not None and evidence.interval[0] <= 0 and evidence.search is None:
        lines.append(("not certain", "a gain is expected, but its interval holds zero"))
    if evidence.certainty is not None:
        words = f"chosen in {evidence.certainty:.0%} of resamples"
        if evidence.runner_up is not None:
            readout, layer = evidence.runner_up
            words += f"; next is layer {layer} under {readout}"
        lines.append(("how sure", words))
    return lines


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


def _speed(evidence: Evidence) -> str:
    """Return the texts per second, where they are more than today's."""
    speeds = evidence.texts_per_second
    if not speeds or (evidence.relative_cost or 0) >= 1:
        return ""
    today = speeds["today"]
    now = speeds["now"]
    return f"; {today:,.3g} texts per second today → {now:,.3g} now ({now / today:.1f} ×)"


def _encoder_line(evidence: Evidence) -> list[tuple[str, str]]:
    """Return that the encoder which judges may be the better answer: it was trained for this."""
    name = evidence.encoder
    if name is None:
        return []
    ratio = evidence.texts_per_second[name] / evidence.texts_per_second["now"]
    words = (
        f"{name}, which judged, was itself trained for embeddings and reads {ratio:.2g} × as many "
        "texts per second here. If its license and language suit you, it may be the better answer: "
        "`layerscope compare` tells with labels of yours."
    )
    return [("before you use it", words)]


def _cheaper_line(result: Improved) -> list[tuple[str, str]]:
    """Return the cheapest candidate that is as good within the noise, where it saves a tenth."""
    cost = result.evidence.relative_cost or 1.0
    tied = result.table[result.table["tied"].astype(bool)]
    if not len(tied) or tied["cost"].min() > 0.9 * cost:
        return []
    cheapest = tied.iloc[int(tied["cost"].argmin())]
    words = (
        f"layer {cheapest['layer']}, {describe_readout(str(cheapest['readout']))}: as good within "
        f"the noise, {1 - cheapest['cost'] / cost:.0%} cheaper ({cheapest['cost']:.2f} × instead "
        f"of {cost:.2f} ×). To take it: budget={cheapest['cost'] + 0.005:.2f}"
    )
    return [("cheaper", words)]


# The terminal


def print_improved(result: Improved, console: Console | None = None) -> None:
    """Print the headline, neighbors before and after, the facts, notes and the next command."""
    console = console or Console(highlight=False)
    evidence = result.evidence
    headline = sentence(result).removeprefix(f"{result.model}: ")
    console.print(escape(f"{result.model}: {headline}."), style="bold")
    if not evidence.kept_default and len(result.neighbors):
        console.print(_neighbors(result))
    print_facts(console, score_lines(result))
    print_notes(console, (*result.warnings, *cost_notes(evidence)))
    if result.folder is not None:
        call = "encode(texts)"
        if evidence.search is not None:
            call = "encode_query(queries), .encode_document(documents)"
        folder = escape(str(result.folder))
        console.print(f'Use it: [bold]SentenceTransformer("{folder}")[/].{call}')
        servers = Exported.load(result.folder).facts["servers"]
        console.print(f"Opens in {opening_words(servers)}", markup=False)


def as_text(result: Improved) -> str:
    """Return the improvement as plain text."""
    stream = io.StringIO()
    print_improved(result, Console(file=stream, width=200, highlight=False, color_system=None))
    return stream.getvalue()


def _neighbors(result: Improved) -> Table:
    kind = "texts" if result.evidence.search is None else "queries"
    title = f"Five of your {kind}, drawn at random, with their nearest neighbors"
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in ("text", "nearest today", "nearest now"):
        table.add_column(name, overflow="fold", max_width=_WIDTH)
    for text, group in result.neighbors.groupby("text", sort=False):
        sides = [
            _numbered(group.loc[group["which"] == side, "neighbor"]) for side in ("before", "after")
        ]
        table.add_row(escape(_cut(text)), *(escape(side) for side in sides), end_section=True)
    return table


def _numbered(texts: Iterable[Any]) -> str:
    """Return texts below each other; a number shows where the next begins."""
    return "\n".join(f"{rank}. {_cut(text)}" for rank, text in enumerate(texts, 1))


def _cut(text: Any) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…"
