"""The sha256 of a large file, remembered as long as the file is the same."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from functools import cache
from pathlib import Path

from layerscope.cache import cache_dir
from layerscope.core.files import sha256_of

__all__ = ["file_sha256"]


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file, remembered in the user cache until something writes to the
    file."""
    real = path.resolve()
    stat = real.stat()
    # ctime changes also where a tool that copies sets mtime back
    return _remembered(real, (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino))


@cache
def _remembered(path: Path, state: tuple[int, ...]) -> str:
    memo = cache_dir() / "fingerprints" / (hashlib.sha256(str(path).encode()).hexdigest() + ".json")
    with suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads(memo.read_text())
        if stored["state"] == list(state):
            return str(stored["sha256"])
    digest = sha256_of(path)
    # The memo saves time only: a cache that cannot be written must not stop a run.
    with suppress(OSError):
        memo.parent.mkdir(parents=True, exist_ok=True)
        memo.write_text(json.dumps({"state": state, "sha256": digest}))
    return digest
