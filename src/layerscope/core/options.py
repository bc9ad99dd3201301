"""Options that go together, as typed objects: how a model is loaded, how data are read, where the
work runs.

Every command takes them whole (`model_options=ModelOptions(dtype="bfloat16")`), as a mapping, or as
flat keywords (`dtype="bfloat16"`). An option that is None has the default of the function that uses
it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from layerscope.errors import InvalidValueError, LayerscopeError, UnknownNameError


@dataclass(frozen=True)
class OptionGroup:
    """The base of the option objects.

    >>> DataOptions(limit=5).given()
    {'limit': 5}
    """

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the options."""
        return tuple(field.name for field in fields(cls))

    @classmethod
    def label(cls) -> str:
        """What one of them is called in a message, such as `model option`."""
        return cls.__name__.removesuffix("Options").lower() + " option"

    @classmethod
    def of(cls, value: Self | Mapping[str, Any] | None = None, **flat: Any) -> Self:
        """Options from an object or a mapping, with flat keywords added. The same option given
        twice is an error.

        >>> ModelOptions.of({"dtype": "bfloat16"}, device="cpu").given()
        {'dtype': 'bfloat16', 'device': 'cpu'}
        """
        if isinstance(value, cls):
            given = value.given()
        elif value is None or isinstance(value, Mapping):
            given = dict(value or {})
        else:
            raise InvalidValueError(
                f"{cls.label()}s are a {cls.__name__} or a mapping, not {type(value).__name__}."
            )
        for name in (*given, *flat):
            if name not in cls.names():
                raise UnknownNameError(cls.label(), str(name), cls.names())
        flat = {name: option for name, option in flat.items() if option is not None}
        twice = next(
            (name for name in flat if given.get(name) is not None and given[name] != flat[name]),
            None,
        )
        if twice is not None:
            raise InvalidValueError(
                f"{twice} is given twice: {given[twice]!r} and {flat[twice]!r}. Give it once."
            )
        return cls(**{**given, **flat})

    def given(self) -> dict[str, Any]:
        """The options that are set, by name."""
        return {name: value for name in self.names() if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class ModelOptions(OptionGroup):
    """How a model is loaded; see `layerscope.load` for what each option does."""

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
    """How named data are read: which column, how many items, which filter, which split."""

    column: str | None = None
    limit: int | None = None
    text_filter: str | None = None
    split: str | None = None


def parse_size(text: str | int) -> int:
    """Bytes from `500MB`, `10GB` and the like.

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
    """Where the model runs, and the maximum number of items per batch. `engine` is a name (`local`,
    `ray`) or an `Engine`."""

    engine: Any = None
    address: str | None = None
    workers: int | None = None
    gpus_per_worker: float | None = None
    batch_size: int | None = None
    memory: int | str | None = None  # of a GPU: bytes, or text such as `8GB`

    @classmethod
    def of(cls, value: Any = None, **flat: Any) -> Self:
        """As `OptionGroup.of`; the name of an engine, or an engine itself, stands for the option
        `engine`."""
        if not (value is None or isinstance(value, (cls, Mapping))):
            value = {"engine": value}
        options = super().of(value, **flat)
        if options.batch_size is not None and options.batch_size < 1:
            raise InvalidValueError(f"batch_size must be at least 1, not {options.batch_size}.")
        if options.memory is None:
            return options
        if getattr(options.engine, "remote", options.engine == "ray"):
            raise LayerscopeError(
                "memory bounds this process: leave it out where workers of a cluster run the model."
            )
        return replace(options, memory=parse_size(options.memory))


T = TypeVar("T", bound=OptionGroup)


def take_options(kind: type[T], given: Any, keywords: dict[str, Any]) -> T:
    """Options of one kind from what was given whole and the flat `keywords`, from which they are
    removed."""
    return kind.of(given, **{name: keywords.pop(name) for name in kind.names() if name in keywords})
