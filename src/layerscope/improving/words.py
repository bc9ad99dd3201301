"""Every sentence about an improvement: for the terminal, the report and the model card."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from rich.markup import escape
from rich.table import Table

from layerscope.choose.choice import Choice
from layerscope.choose.judges import NEIGHBORS
from layerscope.core.readout import Readout, describe_readout, row_words
from layerscope.exporting.job import Exported
from layerscope.exporting.publishing import PRIVATE
from layerscope.exporting.servers import opening_words
from layerscope.improving.result import Evidence, Improved, Training
from layerscope.terminal import Console, print_facts, print_notes

_CLEAR_RATIO = 1.05
"""A ratio is told if it is more than this; what rounds to "1.0 ×" is no improvement."""

_WIDTH = 64

NO_WORDS = (
    "most of these texts are hardly made of words. A part of such a text need not mean the same, "
    "so the model cannot judge itself: give a few labeled examples, or as the judge an encoder "
    "that knows such texts."
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
    reason = (
        f"Chosen from {count} layers and readouts by {evidence.judge}: {score}"
        f"{evidence.before:.3f} → {evidence.after:.3f}."
    )
    if evidence.near > 1:
        reason += f" It is the cheapest of {evidence.near} that score practically the same."
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
        query = evidence.query or str(choice.readout)
        action = f"Reading {place} ({describe_readout(query)})"
        if query != choice.readout:
            action += f" (documents: {row_words(str(choice.readout))[0]})"
    effect = f"raises the {evidence.score_name} from {evidence.before:.3f} to {evidence.after:.3f}"
    before, after = evidence.neighbors or (0.0, 0.0)
    if before > 0 and after / before > _CLEAR_RATIO:
        reference = evidence.judge.rpartition("agreement with ")[-1]
        effect = (
            f"finds {NEIGHBORS * after:.1f} of each text's {NEIGHBORS} nearest neighbors according "
            f"to {reference} ({NEIGHBORS * before:.1f} before)"
        )
    cost = evidence.relative_cost
    amount = "" if 0.95 <= cost <= 1.05 else f"{cost:.2f} × "
    return f"{action} {effect}, at {amount}the baseline's computation"


def page_words(result: Improved) -> list[str]:
    """Return the headline and the numbers behind it, for a page."""
    evidence = result.evidence
    if result.choice.abstained or evidence.kept_default:
        return [result.choice.headline()]
    baseline = "The baseline is the last layer, the mean of its tokens"
    if evidence.training is not None:
        return [sentence(result), baseline, training_outcome(evidence.training)]
    numbers = f"{evidence.score_name}: {_change(evidence)}, on {_population(result)}"
    return [sentence(result), numbers, baseline]


def _population(result: Improved) -> str:
    """Return what the gain was measured on."""
    count = result.evidence.queries
    if count is not None:
        return f"{count} queries that did not choose"
    return f"{result.manifest['texts']['sampled']:,} texts"


def _change(evidence: Evidence) -> str:
    low, high = evidence.interval
    numbers = f"{evidence.before:.3f} before → {evidence.after:.3f}"
    return f"{numbers} (gain {low:+.3f} to {high:+.3f}, 95 %)"


# The facts


def score_lines(result: Improved) -> list[tuple[str, str]]:
    """Return the facts behind the choice: names and values."""
    evidence = result.evidence
    texts = result.manifest["texts"]
    lines = [
        ("why", result.choice.reason),
        ("readout", str(result.choice.readout)),
        ("judge", evidence.judge),
    ]
    if not evidence.kept_default:
        lines += _gain_lines(result)
    if texts.get("fitted_on"):
        lines.append(("fitted on", texts["fitted_on"]))
    scored = int(result.table["score"].notna().sum())
    lines.append(("judged", f"{scored} layers × readouts on {texts['sampled']} texts"))
    return lines


def _gain_lines(result: Improved) -> list[tuple[str, str]]:
    """Return the facts about the gain and the cost."""
    evidence = result.evidence
    lines = [(evidence.score_name, f"{_change(evidence)}, on {_population(result)}")]
    if evidence.query:
        lines.append(("queries", evidence.query))
    if evidence.interval[0] <= 0:
        lines.append(("not certain", "a gain is expected, but its interval holds zero"))
    if evidence.certainty is not None:
        lines.append(("how sure", f"chosen in {evidence.certainty:.0%} of resamples"))
    lines.append(("baseline", f"layer {result.choice.layers} under {Readout().name}"))
    if evidence.training is None and evidence.teacher:
        words = "the score is of texts that it was not fitted on"
        lines.append(("head", f"fitted on {evidence.teacher}; {words}"))
    lines.append(("cost per text", f"{evidence.relative_cost:.2f} × the baseline's"))
    if evidence.encoder:
        words = (
            f"{evidence.encoder}, which judged, was itself trained for embeddings. If its license "
            "and language suit you, it may be the better answer: `layerscope compare` tells with "
            "labels of yours."
        )
        lines.append(("before you use it", words))
    return [*lines, *_cheaper_line(result)]


def _cheaper_line(result: Improved) -> list[tuple[str, str]]:
    """Return the cheapest candidate that is as good within the noise, where it saves a tenth."""
    cost = result.evidence.relative_cost
    tied = result.table[result.table["tied"].astype(bool)]
    if not len(tied) or tied["cost"].min() > 0.9 * cost:
        return []
    cheapest = tied.iloc[int(tied["cost"].argmin())]
    words = (
        f"layer {cheapest['layer']}, {describe_readout(str(cheapest['readout']))}: as good within "
        f"the noise, at {cheapest['cost']:.2f} ×. To take it: budget={cheapest['cost'] + 0.005:.2f}"
    )
    return [("cheaper", words)]


# The terminal


def print_improved(result: Improved, console: Console | None = None) -> None:
    """Print the headline, neighbors before and after, the facts, notes and the next command."""
    console = console or Console(highlight=False)
    headline = sentence(result).removeprefix(f"{result.model}: ")
    console.print(escape(f"{result.model}: {headline}."), style="bold")
    if not result.evidence.kept_default and len(result.neighbors):
        console.print(_neighbors(result))
    print_facts(console, score_lines(result))
    print_notes(console, result.warnings)
    if result.folder is not None:
        call = "encode(texts)"
        if result.evidence.queries is not None:
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
    kind = "texts" if result.evidence.queries is None else "queries"
    title = f"Five of your {kind}, drawn at random, with their nearest neighbors"
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in ("text", "nearest before", "nearest now"):
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
