"""Files that are either whole or not there: written beside their place, synced, then renamed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from layerscope.errors import RunFolderError, os_advice

__all__ = ["plain", "write_bytes", "write_text"]

PART = ".part"
_PART_NAME = re.compile(r"\.\d+-[0-9a-f]{8}\.part$")
_REFUSED = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ENOENT, errno.EINVAL,
    errno.ELOOP, errno.EISDIR, errno.ENXIO,
)  # fmt: skip
_MOST_NAME = 190  # bytes: most disks allow 255 for the whole


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the file system's refusals into errors that say what to do."""
    try:
        yield
    except OSError as error:
        if advice := os_advice(error):
            raise RunFolderError(
                f"cannot write {path}: {advice} What was finished before is kept."
            ) from error
        if error.errno in _REFUSED:
            raise RunFolderError(
                f"cannot write {path}: {error.strerror}. Choose another folder."
            ) from error
        raise


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
    """See that names in a folder survive a power failure: a file that was synced is lost where its
    name is not."""
    if os.name == "nt":
        return  # folders cannot be opened there
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder that can be written but not listed
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS):
            raise  # some network disks cannot
    finally:
        os.close(descriptor)


def free_name(path: Path, ending: str) -> Path:
    """Return a path itself, or with an ending, so that nothing is there."""
    while os.path.lexists(path):
        path = path.with_name(path.name + ending)
    return path


def is_part(path: Path) -> bool:
    """Return whether a name is one that `part_of` gives."""
    return path.name.startswith(".") and _PART_NAME.search(path.name) is not None


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
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """Return JSON as it is written to files."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """Return a value made of what JSON knows."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "inf" if value == math.inf else None
    if value is None or isinstance(value, (str, int, bool)):
        return value
    return str(value)


def reserve(path: Path, size: int) -> None:
    """Make a file of `size` bytes whose space on the disk is taken: writing to a map of a full disk
    ends the process."""
    with open(path, "ab") as stream:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, size)
        else:
            stream.truncate(size)
