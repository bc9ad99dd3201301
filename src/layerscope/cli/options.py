"""Reading option values."""

from __future__ import annotations

import re
from pathlib import Path

from layerscope.core.runs import folder_name
from layerscope.errors import LayerscopeError


def words(text: str | None) -> list[str] | None:
    """A comma-separated list, or None where nothing was given."""
    if text is None:
        return None
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise LayerscopeError(f"expected a comma-separated list of names, got {text!r}.")
    return found


def readout_names(given: list[str]) -> list[str] | None:
    """Readouts from a repeatable option: comma-separated, except that a value with a pattern of the user's own is taken whole.

    >>> readout_names(["one-word,echo", "In short, {text}/mean"])
    ['one-word', 'echo', 'In short, {text}/mean']
    """
    found = [name for value in given for name in ([value] if "{text}" in value else words(value) or [])]
    return found or None


def real(text: str | None, name: str) -> float | None:
    """A number, `inf` included, or None where nothing was given."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise LayerscopeError(f"--{name} takes a number (or inf), not {text!r}.") from None


def whole_numbers(text: str | None, name: str) -> list[int] | None:
    """A comma-separated list of whole numbers, or None where nothing was given."""
    found = words(text)
    if found is None:
        return None
    try:
        return [int(part) for part in found]
    except ValueError:
        raise LayerscopeError(f"--{name} takes whole numbers separated by commas, not {text!r}.") from None


def size(text: str) -> int:
    """Bytes from `500MB`, `10GB` and the like.

    >>> size("2GB")
    2147483648
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", text, re.IGNORECASE)
    if match is None:
        raise LayerscopeError(f"a size is a number with KB, MB, GB or TB, such as 10GB, not {text!r}.")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def default_folder(*parts: str) -> Path:
    """Where a run goes when the user names no folder: `runs/` and what it is about."""
    return Path("runs") / "--".join(folder_name(part) for part in parts)
