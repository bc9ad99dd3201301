"""Sizes and lists, as people write them."""

from __future__ import annotations

__all__ = ["describe_size", "split_names"]


def describe_size(count: float) -> str:
    """A number of bytes in the largest unit that fits.

    >>> describe_size(900), describe_size(1.5 * 2**20), describe_size(87 * 2**20), describe_size(10 * 2**30)
    ('900 bytes', '1.5 MB', '87 MB', '10 GB')
    """
    units = ["bytes", "KB", "MB", "GB", "TB"]
    while abs(count) >= 1024 and len(units) > 1:
        count /= 1024
        del units[0]
    return (
        f"{count:.1f} {units[0]}" if abs(count) < 9.95 and count % 1 else f"{count:.0f} {units[0]}"
    )


def count_of(count: int, what: str) -> str:
    """So many things, named in the plural.

    >>> count_of(1, "prompts"), count_of(12, "texts")
    ('1 prompt', '12 texts')
    """
    return f"{count} {what.removesuffix('s') if count == 1 else what}"


def shorten(text: str, most: int) -> str:
    """A text of at most so many characters.

    >>> shorten("weights", 7), shorten("weights", 4)
    ('weights', 'wei…')
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def split_names(text: str) -> list[str]:
    """The parts of a comma-separated list, without the empty ones.

    >>> split_names("gpt2, lee,")
    ['gpt2', 'lee']
    """
    return [part.strip() for part in text.split(",") if part.strip()]
