"""The errors that layerscope raises on purpose.

A `LayerscopeError` is something the user can act on: the command line prints its message without a
traceback and exits non-zero. Its text says what was given, what is valid and what to do next.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

__all__ = [
    "DataError",
    "DownloadError",
    "ExportError",
    "InvalidValueError",
    "LayerscopeError",
    "ModelError",
    "OfflineError",
    "RunFolderError",
    "UnknownNameError",
    "clean_name",
    "clean_names",
    "printable",
]

# control characters, line separators, and marks that reorder what is printed
_HARMFUL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_MAX_SHOWN = 100

USUALLY_MEANT = {
    ("metric", "entropy"): "prompt_entropy",
    ("metric", "rank"): "effective_rank",
    ("metric", "sink"): "sink_ratio",
}
"""The name that people mean, by kind and by what they write, where another is nearer in its
letters."""


def printable(text: str) -> str:
    """Return a text without what a terminal obeys: names from files may hold escapes that move,
    hide or color what is printed."""
    return _HARMFUL.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(name: str) -> str:
    """Return a name as it can stand in a line of text: printable, and without line ends."""
    return " ".join(printable(name).split())


def clean_name(name: str) -> str:
    """Return a name that somebody else chose, as it may be shown: itself, unless it holds line ends
    or what a terminal obeys.

    >>> clean_name("two  spaces"), clean_name("red \\x1b[31m\\nname")
    ('two  spaces', 'red \ufffd[31m name')
    """
    is_clean = printable(name) == name and "\n" not in name
    return name if is_clean else one_line(name)


def clean_values(value: Any) -> Any:
    """Return values from a file that somebody else may have written, with clean texts."""
    if isinstance(value, str):
        return clean_name(value)
    if isinstance(value, Mapping):
        return {clean_name(key): clean_values(inner) for key, inner in value.items()}
    return [clean_values(inner) for inner in value] if isinstance(value, list) else value


def clean_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return names as they may be shown; those that were different stay so.

    >>> clean_names(["a", "b\\x07", "b\\x08"])
    ('a', 'b\ufffd', 'b\ufffd (2)')
    """
    cleaned: list[str] = []
    for name in names:
        shown = clean_name(name)
        candidate = shown
        number = 1
        while candidate in cleaned:
            number += 1
            candidate = f"{shown} ({number})"
        cleaned.append(candidate)
    return tuple(cleaned)


class LayerscopeError(Exception):
    """An error that the user can act on; the base class of layerscope's own errors."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(arg) if isinstance(arg, str) else arg for arg in args))


class InvalidValueError(LayerscopeError, ValueError):
    """A value that a parameter cannot have."""


def near_misses(wrong: str, names: Iterable[str], limit: int = 1) -> list[str]:
    """Return the names that somebody who wrote `wrong` may have meant: the most similar first, then
    those of which it is a part.

    >>> near_misses("max_len", ["max_length", "model"]), near_misses("version", ["verify"])
    (['max_length'], [])
    """
    word = wrong.lower()
    by_lower = {name.lower(): name for name in sorted(names, reverse=True)}
    similar = get_close_matches(word, by_lower, limit, cutoff=0.65)
    longer = [
        name
        for name in sorted(by_lower, key=len)
        if len(word) >= 3 and (name.startswith(word) or word in re.split("[-_/]", name))
    ]
    return [by_lower[name] for name in dict.fromkeys([*similar, *longer])][:limit]


class UnknownNameError(InvalidValueError):
    """A name that is not one of the valid ones; suggests the nearest."""

    def __init__(self, kind: str, wrong: str, valid: Iterable[str], hint: str = "") -> None:
        names = sorted(valid)
        self.nearest = USUALLY_MEANT.get((kind, wrong.lower()))
        if self.nearest not in names:
            self.nearest = next(iter(near_misses(wrong[:_MAX_SHOWN], names)), None)
        shown = wrong if len(wrong) <= _MAX_SHOWN else wrong[: _MAX_SHOWN - 3] + "..."
        sentences = [f"unknown {kind} {shown!r}."]
        if self.nearest:
            sentences.append(f"Did you mean {self.nearest!r}?")
        sentences.append(f"Valid: {', '.join(names)}.")
        if hint:
            sentences.append(hint)
        super().__init__(" ".join(sentences))


_FULL = (
    "no space left on the disk. Free some space, or use a folder on another disk, and run the same "
    "command again."
)
_FILES = (
    "this process has too many open files. Raise the limit (`ulimit -n 4096`) and run the same "
    "command again."
)
_LARGE = "a file is larger than it may be here. Raise the limit (`ulimit -f`), or use another disk."
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.EFBIG: _LARGE,
}


def os_advice(error: BaseException | None) -> str:
    """Return what to do if a machine's limits caused an error; empty for other errors."""
    if isinstance(error, MemoryError):
        return (
            "memory is short, or limited (`ulimit -v`, `ulimit -d`). Give less at once, or raise "
            "the limit."
        )
    # numpy reports a write that was cut short without an error number
    if isinstance(error, OSError) and "requested and" in str(error):
        return _FULL
    return _ADVICE.get(getattr(error, "errno", None) or 0, "")


class OfflineError(LayerscopeError):
    """Something is needed that is not on this machine, and downloads are off."""


class DownloadError(LayerscopeError):
    """A download failed, or its content is not what was expected."""


class ModelError(LayerscopeError):
    """A model that cannot be loaded or whose structure is not understood."""


class DataError(LayerscopeError):
    """Texts that cannot be read or used."""


class NonFiniteStatesError(LayerscopeError):
    """NaN or infinity in a model's states."""


class RunFolderError(LayerscopeError):
    """A run folder that cannot be written, resumed or read."""


class ExportError(LayerscopeError):
    """A model or readout that cannot be exported, or an export that does not give back what was
    measured."""
