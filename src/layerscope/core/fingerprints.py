"""The sha256 of a large file, remembered as long as the file is the same."""

from __future__ import annotations

import hashlib
import json
import math
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from layerscope.cache import cache_dir
from layerscope.core.files import sha256_of
from layerscope.core.json import CHECKSUM, checksum, matches_checksum

_CHUNK = 1 << 20
_MINUTE = 60.0
_READ: dict[
    tuple[str | int, ...], tuple[float, str]
] = {}  # when a file was last read in full, and its sha256


def file_sha256(path: Path) -> str:
    """The sha256 of a file, remembered in the user cache as long as the file is the same.

    It is where nothing wrote to it (size, times and inode) and a sum over all its bytes is what it
    was: no time tells of a bit that a disk lost. The sum is much faster than the sha256, and holds
    for a minute in this process.
    """
    real = path.resolve()
    key: tuple[str | int, ...] = (str(real), *stat_key(real))
    when, digest = _READ.get(key, (-math.inf, ""))
    if time.monotonic() - when < _MINUTE:
        return digest
    memo = cache_dir() / "fingerprints" / (hashlib.sha256(str(real).encode()).hexdigest() + ".json")
    digest, total = "", None
    with suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads(memo.read_text())
        if stored["key"] == list(key) and matches_checksum(stored):
            total = _sum(real)
            digest = str(stored["sha256"]) if stored["sum"] == total else ""
    if not digest:
        digest = sha256_of(real)
        # The memo saves time only: a cache that cannot be written must not stop a run, and half a
        # memo is none.
        with suppress(OSError):
            memo.parent.mkdir(parents=True, exist_ok=True)
            told = {"key": key, "sha256": digest, "sum": _sum(real) if total is None else total}
            memo.write_text(json.dumps({**told, CHECKSUM: checksum(told)}))
    _READ[key] = time.monotonic(), digest
    return digest


def stat_key(path: Path) -> tuple[int, ...]:
    """What changes when anything writes to a file: ctime does, also where copying tools set mtime
    back."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def _sum(path: Path) -> int:
    """The sum of a file's bytes, taken as 8-byte numbers: any single bit changes it. Several GB per
    second."""
    total, buffer = np.uint64(path.stat().st_size), bytearray(_CHUNK)
    with path.open("rb") as stream, np.errstate(over="ignore"):
        while count := stream.readinto(buffer):
            buffer[count:] = bytes(len(buffer) - count)
            total += np.frombuffer(buffer, dtype=np.uint64).sum(dtype=np.uint64)
    return int(total)
