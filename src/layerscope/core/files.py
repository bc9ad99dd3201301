"""Facts about files and their names."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["exists", "sha256_of"]

_LONGEST_NAME = 255  # bytes, on most disks


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
    return Path(name).name == name and len(name.encode("utf-8", "surrogatepass")) <= _LONGEST_NAME


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, as `sha256sum` prints it."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
