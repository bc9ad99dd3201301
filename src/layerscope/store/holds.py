"""Who is using a folder: shared locks that the kernel releases however a process ends."""

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
    """Keeps a folder from being removed by other processes, until it is released or the process ends."""

    def __init__(self, folder: Path) -> None:
        self.held = False
        descriptor = _take(folder)
        if descriptor is not None:
            self.held = True
            self._release = weakref.finalize(self, os.close, descriptor)

    def release(self) -> None:
        """Let others remove the folder."""
        if self.held:
            self._release()


def _take(folder: Path) -> int | None:
    path = folder / USED
    while True:
        if not folder.is_dir() or os.access(folder, os.W_OK):
            with atomic.explained(folder):
                folder.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            continue  # removed in between: make it again
        except OSError:
            return None  # a disk that can only be read: nobody removes anything there
        if fcntl is not None:
            with contextlib.suppress(OSError):  # some network disks have no locks
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)  # locked a file that was removed while we waited


def in_use(folder: Path, then: Callable[[], None] | None = None) -> bool:
    """Whether anyone holds a folder; where nobody does, `then` runs before anyone can."""
    try:
        descriptor = os.open(folder / USED, os.O_RDWR)
    except FileNotFoundError:
        descriptor = None
    try:
        if descriptor is not None and fcntl is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError:
                pass  # no locks here
        if then is not None:
            with contextlib.suppress(FileNotFoundError), atomic.explained(folder):
                then()
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)
