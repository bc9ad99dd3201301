"""Which texts count as prompts: the filters used on WikiText, usable on any list of texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from layerscope.errors import DataError, UnknownNameError

TEXT_FILTERS = ("none", "paper", "released")
PAPER_MIN_TOKENS = 30
RELEASED_MIN_CHARACTERS = 10


def count_whitespace_tokens(text: str) -> int:
    """How many whitespace-separated tokens a text has."""
    return len(text.split())


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


def text_filter(
    name: str = "paper",
    *,
    count_tokens: Callable[[str], int] = count_whitespace_tokens,
    min_tokens: int | None = None,
) -> Callable[[str], str | None]:
    """A function that says why a text is left out, or None if it is kept.

    `paper` drops headings and texts of fewer than 30 tokens, counted as words between spaces unless `count_tokens` says
    otherwise; `released`, as in the authors' code, drops headings and texts of fewer than 10 characters; `none` drops nothing.
    `min_tokens` sets (or, for the others, adds) a least number of tokens.

    >>> keep = text_filter("released")
    >>> keep(" = Title = "), keep("short"), keep("long enough to keep")
    ('heading', 'short', None)
    """
    if name not in TEXT_FILTERS:
        raise UnknownNameError("text filter", str(name), TEXT_FILTERS)
    if min_tokens is not None and (isinstance(min_tokens, bool) or not isinstance(min_tokens, int) or min_tokens < 0):
        raise DataError(f"min_tokens is {min_tokens!r}; it must be a whole number, 0 or more.")
    least_tokens = min_tokens if min_tokens is not None else (PAPER_MIN_TOKENS if name == "paper" else 0)
    least_characters = RELEASED_MIN_CHARACTERS if name == "released" else 0
    headings = name != "none"

    def reason(text: str) -> str | None:
        if headings and is_heading(text):
            return "heading"
        if len(text) < least_characters:
            return "short"
        # Counting tokens may mean running a tokenizer, so it comes last.
        if least_tokens and count_tokens(text) < least_tokens:
            return "short"
        return None

    return reason


def filter_texts(
    texts: Iterable[str],
    filter: str = "paper",
    *,
    count_tokens: Callable[[str], int] = count_whitespace_tokens,
    min_tokens: int | None = None,
) -> tuple[list[str], dict[str, int]]:
    """The texts that a filter keeps, and how many it left out by reason.

    >>> filter_texts([" = Title = ", "one two three"], "paper", min_tokens=3)
    (['one two three'], {'heading': 1})
    """
    reason = text_filter(filter, count_tokens=count_tokens, min_tokens=min_tokens)
    kept: list[str] = []
    dropped: Counter[str] = Counter()
    for text in texts:
        why = reason(text)
        if why is None:
            kept.append(text)
        else:
            dropped[why] += 1
    return kept, dict(dropped)
