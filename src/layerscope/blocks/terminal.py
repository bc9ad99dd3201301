"""A faster encoder in the terminal."""

from __future__ import annotations

import io

from rich.markup import escape

from layerscope.blocks.result import FasterEncoder
from layerscope.blocks.words import facts, headline
from layerscope.terminal import Console, print_facts, print_frame, print_notes


def print_faster(result: FasterEncoder, console: Console | None = None) -> None:
    """Print the headline, the facts, the front, notes, and how to use the folder."""
    console = console or Console(highlight=False)
    console.print(escape(f"{headline(result.manifest)}."), style="bold")
    print_facts(console, facts(result.manifest))
    rows = [
        {
            "blocks": row["count"],
            "which": row["blocks"],
            "weights": row["weights"],
            "cost": f"{row['cost']:.2f}",
            "agreement": f"{row['agreement']:.3f}",
            "same neighbors": f"{row['neighbors']:.0%}",
            "": "chosen" if row["chosen"] else "",
        }
        for row in result.front.to_dict(orient="records")
    ]
    print_frame(console, rows, list(rows[0]))
    print_notes(console, result.warnings)
    if result.folder is not None:
        folder = escape(str(result.folder))
        console.print(f'Use it: [bold]SentenceTransformer("{folder}")[/].encode(texts)')


def as_text(result: FasterEncoder) -> str:
    """Return the same as plain text."""
    stream = io.StringIO()
    print_faster(result, Console(file=stream, width=200, highlight=False, color_system=None))
    return stream.getvalue()
