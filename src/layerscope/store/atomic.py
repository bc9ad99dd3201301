"""Files that are either whole or not there, and folders that one process writes at a time.

A file is written beside its place, synced, then renamed. The system releases a lock however its
process ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import FileLock, Timeout

from layerscope.errors import RunFolderError, os_advice

__all__ = ["plain", "write_bytes", "write_text"]

PART = ".part"
_PART_NAME = re.compile(r"\.\d+-[0-9a-f]{8}\.part$")
_MOST_NAME = 190  # bytes: most disks allow 255 for the whole
RUN_LOCK = "run.lock"
"""The lock file of a folder. It is there while a process writes, or after it was killed."""


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the file system's refusals into errors that say what to do."""
    try:
        yield
    except OSError as error:
        advice = os_advice(error)
        if advice:
            problem = f"{advice} What was finished before is kept."
        else:
            problem = f"{error.strerror or error}. Choose another folder."
        raise RunFolderError(f"cannot write {path}: {problem}") from error


def write(path: Path, fill: Callable[[BinaryIO], Any]) -> None:
    """Write a file through `fill(stream)`; the file appears whole or not at all."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = part_of(path)
        try:
            with open(beside, "wb") as stream:
                fill(stream)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(beside, path)
            sync_folder(path.parent)
        finally:
            beside.unlink(missing_ok=True)


def part_of(path: Path) -> Path:
    """Return a unique temporary name beside `path`."""
    name = path.name
    if len(os.fsencode(name)) > _MOST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest() + path.suffix[:16]
    return path.with_name(f".{name}.{os.getpid()}-{secrets.token_hex(4)}{PART}")


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder: a file that was synced is lost where its name is not."""
    with contextlib.suppress(OSError):  # Windows and some network disks cannot
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def free_name(path: Path, ending: str) -> Path:
    """Return a path itself, or with an ending, so that nothing is there."""
    while os.path.lexists(path):
        path = path.with_name(path.name + ending)
    return path


def parts_in(folder: Path, of: tuple[str, ...] = ("",)) -> Iterator[Path]:
    """Yield what is being written in a folder, or was when its writer was killed.

    `of` are the endings of what is written.
    """
    for path in folder.glob(f".*{PART}"):
        match = _PART_NAME.search(path.name)
        if match is not None and path.name[: match.start()].endswith(of):
            yield path


def remove_parts(folder: Path, of: tuple[str, ...] = ("",)) -> None:
    """Remove what killed writers left in a folder, files or whole folders.

    The caller is the only writer of it.
    """
    for path in parts_in(folder, of):
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes."""
    write(path, lambda stream: stream.write(content))


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write JSON; numbers that are not finite become null, which every reader understands."""
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n")


def plain(value: Any) -> Any:
    """Return a value made of what JSON knows."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return "inf" if value == math.inf else None
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


@contextmanager
def run_lock(folder: Path, about: Path | None = None) -> Iterator[None]:
    """Be the only writer of a folder. A second process gets an error that names the first.

    `about` is the folder that the error names, where the lock stands for another folder.
    """
    path = folder / RUN_LOCK
    lock = FileLock(path)
    with explained(path):
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


@contextmanager
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
