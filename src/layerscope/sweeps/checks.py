"""Checking what a sweep's file says, piece by piece: every message names the place, what is there and what is valid."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from layerscope.errors import LayerscopeError, UnknownNameError


class SweepFileError(LayerscopeError):
    """A sweep's file that says something that is not understood."""


def expect(value: Any, kinds: type | tuple[type, ...], where: str, wanted: str) -> Any:
    """The value, if it is of the right kind."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds in (int, float, (int, float))):
        raise SweepFileError(f"{where} must be {wanted}, not {_shown(value)}.")
    return value


def only(mapping: dict[str, Any], valid: Iterable[str], where: str) -> None:
    """Refuse a key that means nothing here."""
    names = list(valid)
    for key in mapping:
        if key not in names:
            raise SweepFileError(f"{where}: {UnknownNameError('key', str(key), names)}")


def texts(value: Any, where: str) -> list[str]:
    """A text, or a list of them."""
    many = [value] if isinstance(value, (str, int, float)) and not isinstance(value, bool) else value
    expect(many, list, where, "a name or a list of names")
    if not many:
        raise SweepFileError(f"{where} is an empty list: name at least one, or leave it out.")
    for i, one in enumerate(many):
        expect(one, (str, int, float), f"{where}[{i}]", "a name")
    return [str(one) for one in many]


def entries(value: Any, where: str) -> list[Any]:
    """A list that is not empty."""
    expect(value, list, where, "a list")
    if not value:
        raise SweepFileError(f"{where} is an empty list: name at least one.")
    return list(value)


def _shown(value: Any) -> str:
    return "empty" if value is None else f"{type(value).__name__} {value!r}"
