"""An improvement in words and tables, for the terminal and for notebooks."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from layerscope.core.readout import describe_readout
from layerscope.core.templates import names_of
from layerscope.exporting.job import Exported
from layerscope.exporting.servers import opening_words
from layerscope.improving.choose import front
from layerscope.improving.result import Improved
from layerscope.improving.words import right_neighbors, sentence
from layerscope.terminal import Console, print_facts, print_notes

_WIDTH = 64
_SHOWN = 5
_COSTLY = 4.0
"""Encoding that costs this many times what it costs today is worth a note."""


def score_lines(result: Improved) -> list[tuple[str, str]]:
    """What the judge says, with the change of the readout and the change of the layer apart."""
    evidence = result.manifest["evidence"]
    search, texts = evidence.get("search") or {}, result.manifest["texts"]
    read = search.get("readout", str(result.choice.readout))
    lines = [("why", result.choice.reason), ("readout", read), ("judge", evidence["judge"])]
    if not evidence["kept_default"]:
        lines += [
            (evidence["score_name"], _gain(evidence)),
            *search_lines(evidence),
            ("of which", _parts(evidence)),
        ]
        lines += [("right neighbors", told) for told in right_neighbors(evidence)]
        lines.append(("today", evidence["today"]))
        if evidence.get("trained"):
            lines.append(("trained", evidence["trained"]["words"]))
        elif evidence.get("teacher"):
            lines.append(
                (
                    "head",
                    f"fitted on {evidence['teacher']}; the score is of texts that it was not fitted on",
                )
            )
        lines.append(("cost per text", evidence["cost"] + _speed(evidence)))
        lines += [*_encoder_itself(evidence), *_front_lines(result)]
    centered = texts.get("centered_on")
    if centered:
        how = "fitted on" if evidence.get("teacher") else "centered on"
        lines.append(
            (
                how,
                f"{centered['texts']:,} of {centered['of']:,} {'documents' if search else 'texts'}",
            )
        )
    on = (
        f"the queries that choose and {texts['sampled']} documents"
        if search
        else f"{texts['sampled']} texts"
    )
    judged = f"{evidence['candidates']} layers × readouts on {on}"
    undefined = len(result.table) - evidence["candidates"]
    if (
        0 < undefined < len(result.table)
    ):  # such as layer 0 at a template's last token, which is the same for every text
        judged += f"; {undefined} more cannot be scored"
    lines.append(("judged", judged))
    if not evidence["kept_default"]:
        near = evidence.get("near", 0)
        if near > 1:
            lines.append(
                (
                    "near",
                    f"{near} candidates score practically the same; this is the cheapest of them",
                )
            )
        if "near" in evidence and not evidence.get("trained"):
            lines.append(
                ("tied", f"{evidence['tied']} of them cannot be told from the best on these texts")
            )
    return lines


def search_lines(evidence: dict[str, Any]) -> list[tuple[str, str]]:
    """How queries and documents are read, and what was measured on queries that did not choose."""
    search = evidence.get("search")
    if not search:
        return []
    on = f"on {search['queries']} queries that did not choose, among {search['documents']:,} documents"
    lines = [("measured", on)]
    for name, one in search["measures"].items():
        if name not in evidence["score_name"]:
            lines.append(
                (f"{name} with {search['judge']}" if name == "agreement" else name, _gain(one))
            )
    if search["own"] is not None:
        lines.append(
            (f"{search['judge']} itself", f"nDCG@10 {search['own']:.3f} on the same queries")
        )
    return lines + [(f"{side} read as", pattern) for side, pattern in search["prompts"].items()]


def _gain(one: dict[str, Any]) -> str:
    low, high = one["interval"]
    return f"{one['before']:.3f} today → {one['after']:.3f} (gain {low:+.3f} to {high:+.3f}, 95 %)"


def print_improved(result: Improved, console: Console | None = None) -> None:
    """Headline, neighbors before and after, the evidence, warnings, and the next command."""
    console = console or Console(highlight=False)
    said = sentence(result).removeprefix(f"{result.model}: ")
    console.print(escape(f"{result.model}: {said}."), style="bold")
    if not result.manifest["evidence"]["kept_default"] and len(result.neighbors):
        console.print(_neighbors(result))
    print_facts(console, score_lines(result))
    print_notes(console, (*result.warnings, *_cost_note(result)))
    if result.folder is not None:
        searched = "search" in result.manifest["evidence"]
        call = "encode_query(queries), .encode_document(documents)" if searched else "encode(texts)"
        console.print(
            f'Use it: [bold]SentenceTransformer("{escape(str(result.folder))}")[/].{call}'
        )
        servers = Exported.load(result.folder).facts["servers"]
        console.print(f"Opens in {opening_words(servers)}", markup=False)


def _neighbors(result: Improved) -> Table:
    what = "queries" if "search" in result.manifest["evidence"] else "texts"
    title = f"{result.manifest.get('examples', f'Five of your {what}, drawn at random')}, with their nearest neighbors"
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in ("text", "nearest today", "nearest now"):
        table.add_column(name, overflow="fold", max_width=_WIDTH)
    for text, group in result.neighbors.groupby("text", sort=False):
        sides = [
            _numbered(group.loc[group["which"] == side, "neighbor"]) for side in ("before", "after")
        ]
        table.add_row(escape(_cut(str(text))), *(escape(side) for side in sides), end_section=True)
    return table


def _cost_note(result: Improved) -> list[str]:
    """What to do about a choice that makes every later encoding much slower."""
    evidence = result.manifest["evidence"]
    cost = evidence.get("relative_cost") or 0.0
    if evidence["kept_default"] or cost < _COSTLY:
        return []
    less = f"templates={','.join(names_of('tried'))} (shorter prompts)"
    return [
        f"encoding costs {cost:.1f} × today's computation. For a cheaper choice: budget=0.5, or {less}."
    ]


def _speed(evidence: dict[str, Any]) -> str:
    times, speeds = evidence.get("speedup"), dict(evidence.get("texts_per_second") or {})
    if not times or (evidence.get("relative_cost") or 0) >= 1:
        return ""
    now, today = speeds.pop("now", None), speeds.pop("today", None)
    if now is None or today is None:
        return f"; {times:.1f} × as many texts per second here"
    others = "".join(f"; {name}: {_per_second(speed)}" for name, speed in speeds.items())
    return f"; {times:.1f} × as many texts per second here ({_per_second(today)} → {_per_second(now)}{others})"


def _per_second(speed: float) -> str:
    return f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}"


def _parts(evidence: dict[str, Any]) -> str:
    """What brings the gain."""
    trained = evidence.get("trained")
    if trained:
        return f"head {trained['head'] - trained['today']:+.3f}, training {trained['student'] - trained['head']:+.3f}"
    return f"readout {evidence['readout_gain']:+.3f}, layer {evidence['layer_gain']:+.3f}"


def _encoder_itself(evidence: dict[str, Any]) -> list[tuple[str, str]]:
    """That the encoder which judges may be the better and cheaper answer: it was trained for
    this."""
    name, speeds = evidence.get("encoder"), evidence.get("texts_per_second") or {}
    if not name or not speeds.get(name) or not speeds.get("now"):
        return []
    ratio = speeds[name] / speeds["now"]
    than = (
        f"{ratio:.1f} × as many texts per second here"
        if ratio > 1
        else f"fewer texts per second here ({ratio:.2f} ×)"
    )
    return [
        (
            "before you use it",
            f"{name}, which judged, was itself trained for embeddings and reads {than}. If its license and language suit you, it "
            f"may be the better answer: `layerscope compare` tells with labels of yours.",
        )
    ]


def _front_lines(result: Improved) -> list[tuple[str, str]]:
    """What other costs buy: the candidates that none beats at the same cost or less, a few of
    them."""
    found = front(result.table)
    if len(found) > _SHOWN:
        found = found.iloc[np.unique(np.linspace(0, len(found) - 1, _SHOWN).round().astype(int))]
    rows = [
        f"{row.cost:.2f} ×: {row.score:.3f} (layer {row.layer}, {describe_readout(str(row.readout))})"
        for row in found.itertuples()
    ]
    evidence = result.manifest["evidence"]
    what = "untrained, score by cost" if evidence.get("trained") else "score by cost"
    what += ", of the queries that chose" * ("search" in evidence)
    lines = [(what, "\n".join(rows))] if len(rows) > 1 else []
    other = evidence.get("as_good")
    if other:
        cost = result.manifest["evidence"]["relative_cost"]
        told = f"layer {other['layer']}, {describe_readout(other['readout'])}: as good within the noise, "
        told += f"{1 - other['relative_cost'] / cost:.0%} cheaper ({other['relative_cost']:.2f} × instead of {cost:.2f} ×)"
        lines.append(
            ("cheaper", f"{told}. To take it: budget={other['relative_cost'] + 0.005:.2f}")
        )
    return lines


def _numbered(texts: Iterable[Any]) -> str:
    """Texts below each other; a number shows where the next begins, since long ones are wrapped."""
    return "\n".join(f"{rank}. {_cut(text)}" for rank, text in enumerate(texts, 1))


def _cut(text: Any) -> str:
    one_line = " ".join(str(text).split())
    return one_line if len(one_line) <= _WIDTH else one_line[: _WIDTH - 1] + "…"


def as_text(result: Improved) -> str:
    """The same as plain text."""
    stream = io.StringIO()
    print_improved(result, Console(file=stream, width=200, highlight=False, color_system=None))
    return stream.getvalue()
