"""The one process that may write a folder: a lock that the system releases however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from layerscope.errors import RunFolderError
from layerscope.store import atomic

RUN_LOCK = "run.lock"
"""The lock file of a folder. It is there while a process writes, or after it was killed."""


@contextlib.contextmanager
def run_lock(folder: Path, about: Path | None = None) -> Iterator[None]:
    """Be the only writer of a folder. A second process gets an error that names the first.

    `about` is the folder that the error names, where the lock stands for another folder.
    """
    path = folder / RUN_LOCK
    lock = FileLock(path)
    with atomic.explained(path):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise RunFolderError(
                f"another process is writing the run in {about or folder} ({_holder(path)}). "
                "Wait until it ends, stop it, or choose another out=."
            ) from None
    try:
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        facts = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
        path.write_text(json.dumps(facts), encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows does not remove a file that is open
            path.unlink(missing_ok=True)
        lock.release()


@contextlib.contextmanager
def lock_beside(out: Path, kind: str) -> Iterator[Path]:
    """Be the only process that makes the folder `out`, which appears at the end.

    Yields the hidden folder of the lock beside it, which goes with the block unless something was
    left in it.
    """
    work = out.absolute().with_name(f".{out.name}.{kind}")
    try:
        with run_lock(work, about=out):
            yield work
    finally:
        with contextlib.suppress(OSError):  # it is not empty: a stopped run can go on from it
            os.rmdir(work)


def _holder(path: Path) -> str:
    """Return in words which process holds a lock."""
    try:
        facts = json.loads(path.read_bytes())
        return f"process {facts['pid']} on {facts['host']}, since {facts['since']}"
    except (OSError, ValueError, LookupError, TypeError):
        return "a process that is not known"
