"""Files: their names, their sha256, and JSON from files as an object with a checksum or one clear
error."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from layerscope.cache import cache_dir
from layerscope.errors import DataError, LayerscopeError

__all__ = ["exists", "file_sha256", "read_json", "sha256_of"]

CHECKSUM = "checksum"
"""The key under which a JSON object that layerscope wrote holds its checksum."""

_MAX_NAME = 255  # bytes, on most disks
_BLOCK = 2**16
_BLOCKS = 16
_KINDS: dict[type, str] = {dict: "a JSON object", list: "a JSON list"}


def exists(path: str | Path) -> bool:
    """Return whether a file or folder exists. A text that cannot be a path does not."""
    try:
        return Path(path).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False


def is_plain_name(name: object) -> bool:
    """Return whether a name is that of something in its own folder: no path, not `..`, not empty.

    >>> [is_plain_name(name) for name in ("shards", "../shards", "..", "", 1)]
    [True, False, False, False, False]
    """
    if not isinstance(name, str) or name in ("", ".", "..") or "\0" in name or "\\" in name:
        return False
    return Path(name).name == name and len(name.encode("utf-8", "surrogatepass")) <= _MAX_NAME


# Fingerprints


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, as `sha256sum` prints it."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file, remembered in the user cache until something writes to the
    file."""
    real = path.resolve()
    return _remembered(real, _state(real))


def _state(path: Path) -> tuple[int, ...]:
    """Return the size and the times of a file."""
    stat = path.stat()
    # ctime changes also where a tool that copies sets mtime back
    return (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


@cache
def _remembered(path: Path, state: tuple[int, ...]) -> str:
    """Return the sha256 of a file in a state: from the memo if the beginning and some blocks of the
    file are those that it was made from."""
    memo = cache_dir() / "fingerprints" / (hashlib.sha256(str(path).encode()).hexdigest() + ".json")
    facts = {"state": list(state), "sample": _sample_sha256(path, state[0])}
    with suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads(memo.read_text())
        if all(stored[name] == value for name, value in facts.items()):
            return str(stored["sha256"])
    digest = sha256_of(path)
    # The memo saves time only: a cache that cannot be written must not stop a run.
    with suppress(OSError):
        memo.parent.mkdir(parents=True, exist_ok=True)
        memo.write_text(json.dumps({**facts, "sha256": digest}))
    return digest


def _sample_sha256(path: Path, size: int) -> str:
    """Return the sha256 of the beginning of a file, where a weight file has its header, and of
    blocks spread over the rest."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for i in range(_BLOCKS):
            stream.seek(size * i // _BLOCKS)
            digest.update(stream.read(_BLOCK))
    return digest.hexdigest()


# JSON


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
        raise error(f"{path} is not {_KINDS[expect]} but {type(value).__name__}.")
    return value


def checksum(value: Mapping[str, Any]) -> str:
    """Return the checksum of a JSON object, whatever its layout, without its own checksum."""
    bare = {name: inner for name, inner in value.items() if name != CHECKSUM}
    text = json.dumps(bare, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def matches_checksum(value: Mapping[str, Any]) -> bool:
    """Return whether a JSON object is as it was written. One without a checksum counts as whole."""
    return CHECKSUM not in value or value[CHECKSUM] == checksum(value)
