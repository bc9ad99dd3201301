"""JSON that somebody else wrote, or a disk has damaged: read with limits, and refused with one
clear error.

A file that layerscope writes for itself carries a checksum under `CHECKSUM`, so that a changed
number is noticed.
"""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path
from typing import Any

from layerscope.errors import DataError, LayerscopeError

CHECKSUM = "checksum"
MOST_BYTES = 256 * 2**20
_LONGEST_NAME = 255  # bytes, on most disks


def exists(path: str | Path) -> bool:
    """Whether a file or folder exists. A text that cannot be a path (too long, say) does not."""
    try:
        return Path(path).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False


def is_plain_name(name: object) -> bool:
    """Whether a name from a file is that of something in its own folder: not a path, not `..`, not
    empty.

    >>> [is_plain_name(name) for name in ("shards", "../shards", "..", "", 1)]
    [True, False, False, False, False]
    """
    if not isinstance(name, str) or name in ("", ".", "..") or "\0" in name or "\\" in name:
        return False
    return Path(name).name == name and len(name.encode("utf-8", "surrogatepass")) <= _LONGEST_NAME


def json_problem(error: Exception) -> str:
    """Why a JSON text could not be read."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return str(error).partition(";")[0]


def parse_json(text: str | bytes, where: object, error: type[LayerscopeError] = DataError) -> Any:
    """The value of a JSON text. `where` names it in the error: bad syntax, bad UTF-8, endless
    nesting or numbers."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        line = f", line {problem.lineno}" if isinstance(problem, json.JSONDecodeError) else ""
        raise error(f"{where}{line} is not readable JSON: {json_problem(problem)}.") from problem


def read_json(
    path: Path,
    *,
    expect: type = dict,
    error: type[LayerscopeError] = DataError,
    most_bytes: int = MOST_BYTES,
) -> Any:
    """The value of a JSON file that holds an object (or what `expect` says)."""
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode) and not stat.S_ISDIR(
            facts.st_mode
        ):  # reading a pipe would wait for ever
            raise error(f"{path} is not a file but a pipe or a device.")
        size = facts.st_size
        if size > most_bytes:
            raise error(f"{path} has {size:,} bytes; at most {most_bytes:,} are read.")
        content = path.read_bytes()
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror or problem}.") from problem
    value = parse_json(content, path, error)
    if not isinstance(value, expect):
        wanted = (
            "a JSON object"
            if expect is dict
            else "a JSON list"
            if expect is list
            else expect.__name__
        )
        raise error(f"{path} is not {wanted} but {_named(value)}.")
    return value


def checksum(value: dict[str, Any]) -> str:
    """The checksum of a JSON object, whatever its layout and whether or not it holds its checksum
    already."""
    bare = {name: inner for name, inner in value.items() if name != CHECKSUM}
    text = json.dumps(bare, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def matches_checksum(value: dict[str, Any]) -> bool | None:
    """Whether a JSON object is as it was written; None where it says nothing (it is of an earlier
    version)."""
    return checksum(value) == value[CHECKSUM] if CHECKSUM in value else None


def _named(value: Any) -> str:
    return {dict: "an object", list: "a list", type(None): "null"}.get(
        type(value), type(value).__name__
    )


def sha256_of(path: Path) -> str:
    """The sha256 of a file, as `sha256sum` prints it."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
