"""Folders that several processes use: who holds one, and how large it is."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from pathlib import Path

from layerscope.store import atomic

try:
    import fcntl
except ImportError:  # not on Windows: folders in use are then not protected
    fcntl = None  # type: ignore[assignment]

USED = "used"
"""The file that is locked; its modification time says when the folder was last used."""


class Hold:
    """Keeps a folder (made where there is none) from being removed by others.

    A lock that the kernel releases however the process ends, so that a killed one holds nothing.
    """

    def __init__(self, folder: Path) -> None:
        descriptor = _take(folder)
        self._release = None if descriptor is None else weakref.finalize(self, os.close, descriptor)

    def release(self) -> None:
        """Let others remove the folder."""
        if self._release is not None:
            self._release()


def _take(folder: Path) -> int | None:
    path = folder / USED
    while True:
        if not folder.is_dir():
            with atomic.explained(folder):
                folder.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            continue  # removed in between: make it again
        except OSError:
            return None  # a disk that can only be read: nothing is removed there either
        if fcntl is not None:
            with contextlib.suppress(OSError):  # some network disks have no locks
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)  # this is the file of a folder that was removed while we waited


def in_use(folder: Path, otherwise: Callable[[], None] | None = None) -> bool:
    """Whether anyone holds a folder; where nobody does, `otherwise` runs before anyone can."""
    descriptor = None
    try:
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder / USED, os.O_RDWR)
        if descriptor is not None and fcntl is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError:
                pass  # no locks on this disk
        if otherwise is not None:
            with contextlib.suppress(FileNotFoundError):
                otherwise()
        return False
    except PermissionError:
        return True  # another user's: not ours to remove
    finally:
        if descriptor is not None:
            os.close(descriptor)


def bytes_in(folder: Path) -> int:
    """The bytes of all files under a folder."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # a file that another process has just renamed or removed
                total += os.lstat(os.path.join(at, name)).st_size
    return total
