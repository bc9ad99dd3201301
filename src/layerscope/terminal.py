"""The terminal: a console of rich on which a text is a text, whatever somebody has put into a name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console as RichConsole
from rich.errors import MarkupError
from rich.segment import Segment
from rich.text import Text

from layerscope.errors import printable


class Console(RichConsole):
    """Shows colors that we choose. Escapes in what is shown do not reach the terminal, and `[/b]` in a name is no error."""

    def render(self, *args: Any, **options: Any) -> Iterable[Segment]:
        """The pieces of what is shown; those that hold what a terminal obeys are cleaned."""
        for piece in super().render(*args, **options):
            whole = piece.control or piece.text == "\n" or piece.text.isprintable()
            yield piece if whole else Segment(printable(piece.text), piece.style)

    def render_str(self, text: str, **options: Any) -> Text:
        """A text with its markup, or as it stands where it is no markup."""
        try:
            return super().render_str(text, **options)
        except MarkupError:
            return super().render_str(text, **{**options, "markup": False})
