"""The sha256 of a large file, remembered as long as the file is the same."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from functools import cache
from pathlib import Path

from layerscope.cache import cache_dir
from layerscope.core.files import sha256_of
from layerscope.core.json import CHECKSUM, checksum

__all__ = ["file_sha256"]

_BLOCK = 2**16
_BLOCKS = 16


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
    """Return the sha256 of a file in a state: from the memo if that is whole, and if the beginning
    and some blocks of the file are those that it was made from."""
    memo = cache_dir() / "fingerprints" / (hashlib.sha256(str(path).encode()).hexdigest() + ".json")
    facts = {"state": list(state), "sample": _sample_sha256(path, state[0])}
    with suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads(memo.read_text())
        same = all(stored[name] == value for name, value in facts.items())
        if same and stored[CHECKSUM] == checksum(stored):
            return str(stored["sha256"])
    digest = sha256_of(path)
    whole = {**facts, "sha256": digest}
    # The memo saves time only: a cache that cannot be written must not stop a run.
    with suppress(OSError):
        memo.parent.mkdir(parents=True, exist_ok=True)
        memo.write_text(json.dumps({**whole, CHECKSUM: checksum(whole)}))
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
