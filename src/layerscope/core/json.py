"""JSON from files: an object with a checksum, or one clear error."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from layerscope.errors import DataError, LayerscopeError

__all__ = ["read_json"]

CHECKSUM = "checksum"
"""The key under which a JSON object that layerscope wrote holds its checksum."""

_KINDS: dict[type, str] = {dict: "a JSON object", list: "a JSON list"}
_VALUES: dict[type, str] = {dict: "an object", list: "a list", type(None): "null"}


def json_problem(error: Exception) -> str:
    """Return why a JSON text could not be read."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return str(error).partition(";")[0]


def parse_json(text: str | bytes, where: object, error: type[LayerscopeError] = DataError) -> Any:
    """Return the value of a JSON text; `where` names the text in the error."""
    try:
        return json.loads(text)
    except ValueError as problem:
        line = f", line {problem.lineno}" if isinstance(problem, json.JSONDecodeError) else ""
        raise error(f"{where}{line} is not readable JSON: {json_problem(problem)}.") from problem


def read_json(path: Path, *, expect: type = dict, error: type[LayerscopeError] = DataError) -> Any:
    """Return the value of a JSON file that holds an object (or what `expect` says)."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror or problem}.") from problem
    value = parse_json(content, path, error)
    if not isinstance(value, expect):
        found = _VALUES.get(type(value), type(value).__name__)
        raise error(f"{path} is not {_KINDS.get(expect, expect.__name__)} but {found}.")
    return value


def checksum(value: dict[str, Any]) -> str:
    """Return the checksum of a JSON object, whatever its layout, without its own checksum."""
    bare = {name: inner for name, inner in value.items() if name != CHECKSUM}
    text = json.dumps(bare, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def matches_checksum(value: dict[str, Any]) -> bool:
    """Return whether a JSON object is as it was written. One without a checksum counts as whole."""
    return CHECKSUM not in value or value[CHECKSUM] == checksum(value)
