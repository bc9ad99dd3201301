"""The terminal: a console of rich on which a text is a text, whatever somebody has put into a
name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """Shows colors that we choose. Escapes in what is shown do not reach the terminal, and `[/b]`
    in a name is not an error."""

    def render(self, *args: Any, **options: Any) -> Iterable[Segment]:
        """The pieces of what is shown; those that hold what a terminal obeys are cleaned."""
        for piece in super().render(*args, **options):
            whole = piece.control or piece.text == "\n" or piece.text.isprintable()
            yield piece if whole else Segment(printable(piece.text), piece.style)

    def render_str(self, text: str, **options: Any) -> Text:
        """A text with its markup, or as it stands where it is not markup."""
        try:
            return super().render_str(text, **options)
        except MarkupError:
            return super().render_str(text, **{**options, "markup": False})


def headed_table() -> Table:
    """A table with a line under its head and no frame."""
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)


def unframed_table(columns: int) -> Table:
    """A table without head and lines; its last column folds, the others stay whole."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for column in range(columns):
        last = column == columns - 1
        table.add_column(no_wrap=not last, overflow="fold" if last else "ellipsis")
    return table


_said: Callable[[str], str] = str


def said_as(words: Callable[[str], str]) -> None:
    """Set how notes and facts name parameters; the command line shows its flags."""
    global _said
    _said = words


def print_notes(console: RichConsole, notes: Iterable[Any]) -> None:
    """What a reader must be told beside the numbers, a line each."""
    for note in notes:
        console.print(f"[yellow]note[/] {escape(_said(str(note)))}")


def print_facts(console: RichConsole, facts: Iterable[tuple[str, str]]) -> None:
    """Names, dimmed, and beside each what it is."""
    table = unframed_table(2)
    table.columns[0].style = "dim"
    for name, value in facts:
        table.add_row(escape(name), escape(_said(value)))
    console.print(table)


def print_frame(
    console: RichConsole, rows: Sequence[Mapping[Any, Any]], columns: Sequence[str]
) -> None:
    """Some columns of a table: numbers to the right, with as many digits as tell something; texts
    fold."""
    table = headed_table()
    for name in columns:
        table.add_column(
            name, justify="left" if isinstance(rows[0][name], str) else "right", overflow="fold"
        )
    for row in rows:
        told = map(_shown, (row[name] for name in columns))
        table.add_row(*(escape(" ".join(value.split())[:300]) for value in told))
    console.print(table)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"
