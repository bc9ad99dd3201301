"""The keywords that several commands share: how a model is loaded, how data are read, where the
work runs. And sizes and lists, as people write them.

A command takes them as keywords (`dtype="bfloat16"`) and sorts them into these objects. An option
that is None has the default of the function that uses it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from layerscope.errors import InvalidValueError

__all__ = ["EngineOptions", "ModelOptions", "describe_size", "split_names"]


@dataclass(frozen=True)
class OptionGroup:
    """Base class of the options that belong together.

    >>> DataOptions(limit=5).given()
    {'limit': 5}
    """

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the options."""
        return tuple(field.name for field in fields(cls))

    @classmethod
    def take(cls, keywords: dict[str, Any]) -> Self:
        """Make the options from a command's keywords, and remove them there.

        >>> keywords = {"limit": 5, "alpha": 2.0}
        >>> DataOptions.take(keywords).given(), keywords
        ({'limit': 5}, {'alpha': 2.0})
        """
        return cls(**{name: keywords.pop(name) for name in cls.names() if name in keywords})

    def given(self) -> dict[str, Any]:
        """Return the options that are set, by name."""
        return {name: value for name in self.names() if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class ModelOptions(OptionGroup):
    """Options of `layerscope.load`."""

    dtype: Any = None
    device: Any = None
    device_map: str | Mapping[str, Any] | None = None
    revision: str | None = None
    family: str | None = None
    bidirectional: bool | None = None
    adapters: Sequence[str | Path] | None = None
    trust_remote_code: bool | None = None
    allow_pickle: bool | None = None
    attn_implementation: str | None = None
    attention: str | None = None


@dataclass(frozen=True)
class DataOptions(OptionGroup):
    """Options of reading named data: column, number of items and split."""

    column: str | None = None
    limit: int | None = None
    split: str | None = None


def parse_size(text: str | int) -> int:
    """Return the bytes of `500MB`, `10GB` and the like.

    >>> parse_size("2GB")
    2147483648
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", str(text), re.IGNORECASE)
    if match is None:
        raise InvalidValueError(
            f"a size is a number with KB, MB, GB or TB, such as 10GB, not {text!r}."
        )
    count = float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ")
    return int(min(count, 2.0**62))  # a number of any length is "all of it"


@dataclass(frozen=True)
class EngineOptions(OptionGroup):
    """The engine that runs the model, and the maximum number of items per batch.

    `engine` is a name (`local`, `ray`) or an `Engine`.
    """

    engine: Any = None
    address: str | None = None
    workers: int | None = None
    gpus_per_worker: float | None = None
    batch_size: int | None = None

    @classmethod
    def take(cls, keywords: dict[str, Any]) -> Self:
        """Make the options as `OptionGroup.take` does; a batch holds at least one item."""
        options = super().take(keywords)
        if options.batch_size is not None and options.batch_size < 1:
            raise InvalidValueError(f"batch_size must be at least 1, not {options.batch_size}.")
        return options


def describe_size(count: float) -> str:
    """Return a number of bytes in the largest unit that fits.

    >>> [describe_size(count) for count in (900, 1.5 * 2**20, 87 * 2**20, 10 * 2**30)]
    ['900 bytes', '1.5 MB', '87 MB', '10 GB']
    """
    units = ["bytes", "KB", "MB", "GB", "TB"]
    while abs(count) >= 1024 and len(units) > 1:
        count /= 1024
        del units[0]
    return (
        f"{count:.1f} {units[0]}" if abs(count) < 9.95 and count % 1 else f"{count:.0f} {units[0]}"
    )


def count_of(count: int, things: str) -> str:
    """Return so many things, named in the plural.

    >>> count_of(1, "prompts"), count_of(12, "texts")
    ('1 prompt', '12 texts')
    """
    return f"{count} {things.removesuffix('s') if count == 1 else things}"


def shorten(text: str, limit: int) -> str:
    """Return a text of at most so many characters.

    >>> shorten("weights", 7), shorten("weights", 4)
    ('weights', 'wei…')
    """
    return text if len(text) <= limit else text[: limit - 1] + "…"


def split_names(text: str) -> list[str]:
    """Return the parts of a comma-separated list, without the empty ones.

    >>> split_names("gpt2, lee,")
    ['gpt2', 'lee']
    """
    return [name.strip() for name in text.split(",") if name.strip()]
