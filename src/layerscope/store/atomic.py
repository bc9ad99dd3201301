"""Files that are either whole or not there: written beside their place, synced, then renamed."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from layerscope.errors import RunFolderError


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the file system's refusals into errors that say what to do."""
    try:
        yield
    except OSError as error:
        # numpy tells of a write that was cut short without an error number
        if error.errno in (errno.ENOSPC, errno.EDQUOT) or "requested and" in str(error):
            raise RunFolderError(
                f"no space left on the disk while writing {path}. What was finished before is kept: free some space, or use "
                "a folder on another disk, and run the same command again."
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG):
            raise RunFolderError(f"cannot write {path}: {error.strerror}. Choose another folder.") from error
        raise


def write(path: Path, fill: Callable[[BinaryIO], Any]) -> None:
    """Write a file through `fill(stream)`; the file appears whole or not at all."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with open(beside, "wb") as stream:
                fill(stream)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes."""
    write(path, lambda stream: stream.write(content))


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write JSON; numbers that are not finite become null, which every reader understands."""
    write_text(path, json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_array(path: Path, array: np.ndarray) -> None:
    """Write one numpy array (.npy)."""
    write(path, lambda stream: np.save(stream, array, allow_pickle=False))


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write several numpy arrays (.npz)."""
    write(path, lambda stream: np.savez(stream, **arrays))  # type: ignore[arg-type]


def plain(value: Any) -> Any:
    """A value made of what JSON knows."""
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
    """Make a file of `size` bytes whose space on the disk is taken: writing to a map of a full disk ends the process."""
    with open(path, "ab") as stream:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, size)
        else:
            stream.truncate(size)
