"""Which texts count as prompts: the filters used on WikiText, usable on any list of texts."""

from __future__ import annotations

from collections.abc import Callable

from layerscope.errors import UnknownNameError

TEXT_FILTERS = ("none", "paper", "released")
PAPER_MIN_TOKENS = 30
RELEASED_MIN_CHARACTERS = 10


def is_heading(text: str) -> bool:
    """Whether a text is a WikiText heading.

    >>> is_heading(" = = Early life = = \\n"), is_heading("a = b")
    (True, False)
    """
    line = text.strip()
    if len(line) < 2 or line[0] != "=" or line[-1] != "=" or "\n" in line:
        return False
    # A heading has as many signs on the right as on the left; "= x ==" is not one.
    left = line[: len(line) - len(line.lstrip("= "))]
    right = line[len(line.rstrip("= ")) :]
    return len(left) < len(line) and left.count("=") == right.count("=")


def text_filter(name: str) -> Callable[[str], str | None]:
    """A function that says why a text is left out, or None if it is kept.

    `paper` drops headings and texts of fewer than 30 words; `released`, as in the authors' code, drops headings and texts of
    fewer than 10 characters; `none` drops nothing.

    >>> keep = text_filter("released")
    >>> keep(" = Title = "), keep("short"), keep("long enough to keep")
    ('heading', 'short', None)
    """
    if name not in TEXT_FILTERS:
        raise UnknownNameError("text filter", str(name), TEXT_FILTERS)

    def reason(text: str) -> str | None:
        if name == "none":
            return None
        if is_heading(text):
            return "heading"
        short = len(text.split()) < PAPER_MIN_TOKENS if name == "paper" else len(text) < RELEASED_MIN_CHARACTERS
        return "short" if short else None

    return reason
