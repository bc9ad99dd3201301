"""An improvement in the terminal and in notebooks."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from rich.markup import escape
from rich.table import Table

from layerscope.exporting.job import Exported
from layerscope.exporting.servers import opening_words
from layerscope.improving.result import Improved
from layerscope.improving.words import cost_notes, score_lines, sentence
from layerscope.terminal import Console, print_facts, print_notes

_WIDTH = 64


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
    one_line = " ".join(str(text).split())
    return one_line if len(one_line) <= _WIDTH else one_line[: _WIDTH - 1] + "…"
