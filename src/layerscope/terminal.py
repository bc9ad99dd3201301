"""The terminal: a console of rich that shows names from files as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console as RichConsole
from rich.errors import MarkupError
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from layerscope.errors import printable

__all__ = ["Console", "headed_table", "print_notes"]


class Console(RichConsole):
    """A console on which only our own code sets colors.

    Escapes in a name do not reach the terminal, and `[/b]` in a name is not an error.
    """

    def render(self, *args: Any, **options: Any) -> Iterable[Segment]:
        """Yield the segments of a renderable, without control characters in their text."""
        for segment in super().render(*args, **options):
            if segment.control or segment.text == "\n" or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text with its markup, or as it stands where it is not markup."""
        try:
            return super().render_str(text, **options)
        except MarkupError:
            return super().render_str(text, **{**options, "markup": False})


def headed_table() -> Table:
    """Return a table with a line under its head and no frame."""
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)


def unframed_table(columns: int) -> Table:
    """Return a table without head and lines; its last column folds, the others stay whole."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for _ in range(columns - 1):
        table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_column(overflow="fold")
    return table


def print_notes(console: RichConsole, notes: Iterable[Any]) -> None:
    """Print what a reader must know beside the numbers, a line each."""
    for note in notes:
        console.print(f"[yellow]note[/] {escape(str(note))}")


def print_facts(console: RichConsole, facts: Iterable[tuple[str, str]]) -> None:
    """Print names, dimmed, and the value of each."""
    table = unframed_table(2)
    table.columns[0].style = "dim"
    for name, value in facts:
        table.add_row(escape(name), escape(value))
    console.print(table)


def print_frame(
    console: RichConsole, rows: Sequence[Mapping[Any, Any]], columns: Sequence[str]
) -> None:
    """Print columns of a table: numbers to the right, with three digits; texts fold."""
    table = headed_table()
    for name in columns:
        side = "left" if isinstance(rows[0][name], str) else "right"
        table.add_column(name, justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        cells = [_format(row[name]) for name in columns]
        table.add_row(*(escape(" ".join(cell.split())[:300]) for cell in cells))
    console.print(table)


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"
