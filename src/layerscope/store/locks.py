"""Folders that several processes use: shared holds on a space of the embedding store, and the one
writer of a run's folder."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import weakref
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from layerscope.errors import RunFolderError
from layerscope.store import atomic

try:
    import fcntl
except (
    ImportError
):  # not on Windows: spaces in use are then not protected, runs are by the lock file alone
    fcntl = None  # type: ignore[assignment]

USED = "used"
"""The file of a space that is locked; its modification time says when the space was last used."""

RUN_LOCK = "run.lock"
"""The file of a run's folder that says who writes there. It is there only while somebody does, or
was killed doing it."""


_FACTS = {"pid", "host", "since"}

# A lock that is a link could stand for any file of the user's, and opening a pipe would wait for
# ever.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class Hold:
    """Keeps a folder, which is created if missing, from being removed by others.

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
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o666)
        except FileNotFoundError:
            continue  # removed in between: make it again
        except OSError:
            return None  # a disk that can only be read: nothing is removed there either
        if fcntl is not None:
            with contextlib.suppress(OSError):  # some network disks have no locks
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _is_file(descriptor, path):
            return descriptor
        os.close(descriptor)  # this is the file of a folder that was removed while we waited


def in_use(folder: Path, otherwise: Callable[[], None] | None = None) -> bool:
    """Whether anyone holds a folder; where nobody does, `otherwise` runs before anyone can."""
    descriptor = None
    try:
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder / USED, os.O_RDWR | _NO_LINK)
        if descriptor is not None and _flock(descriptor) is False:
            return True
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
            with contextlib.suppress(
                OSError
            ):  # a file that another process has just renamed or removed
                total += os.lstat(os.path.join(at, name)).st_size
    return total


@contextlib.contextmanager
def run_lock(folder: Path, about: Path | None = None) -> Iterator[None]:
    """Be the only writer of a run's folder. A second one is refused with an error that says who the
    first is.

    `about` is the folder to name where the lock stands for another one than its own.

    The kernel releases the lock however the process ends, so a killed run blocks nobody. On a disk
    without locks the file itself is the lock, and one whose process is gone from this machine is
    taken over.
    """
    path = folder / RUN_LOCK
    with atomic.explained(path):
        folder.mkdir(parents=True, exist_ok=True)
    descriptor, made = _lock_run(path, about or folder)
    try:
        yield
    except FileNotFoundError as error:
        if error.filename is None or not Path(os.fsdecode(error.filename)).is_relative_to(folder):
            raise
        raise RunFolderError(
            f"{os.fsdecode(error.filename)} was removed while the run was written: by another process, if {path} was deleted by "
            "hand. Run the same command again."
        ) from error
    finally:
        mine = made and _is_file(descriptor, path)
        if not made:
            os.ftruncate(descriptor, 0)
        if fcntl is None:  # Windows does not remove a file that is open
            os.close(descriptor)
        if mine:
            path.unlink(missing_ok=True)
        if fcntl is not None:
            os.close(descriptor)


@contextlib.contextmanager
def lock_beside(out: Path, kind: str) -> Iterator[Path]:
    """Be the only process that makes the folder `out`, which appears at the end; yields the lock's
    own hidden folder beside it.

    The hidden folder goes with the block, unless something was left in it.
    """
    work = out.absolute().with_name(f".{out.name}.{kind}")
    if work.is_symlink():
        raise RunFolderError(
            f"{work} is a link, and nothing is written through one. Remove it, or choose another out=."
        )
    try:
        with run_lock(work, about=out):
            yield work
    finally:
        with contextlib.suppress(
            OSError
        ):  # another process is there, or a run was stopped that can go on
            os.rmdir(work)


def _lock_run(path: Path, about: Path) -> tuple[int, bool]:
    """The open lock, and whether a run of layerscope made it: an empty file may be another
    program's, and stays."""
    while True:
        created = True
        with atomic.explained(path):
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                created = False
                try:
                    descriptor = os.open(path, os.O_RDWR | _NO_LINK)
                except FileNotFoundError:
                    continue  # the other run ended in between
            except FileNotFoundError:  # the other run ended in between, and took its folder with it
                path.parent.mkdir(parents=True, exist_ok=True)
                continue
        try:
            made = created or _refuse_foreign(descriptor, path)
            locked = _flock(descriptor)
            if locked is False or (
                locked is None and not created and not _is_gone(_read_holder(path))
            ):
                raise RunFolderError(_refusal(path, about, _read_holder(path), locked is None))
            if _is_file(descriptor, path):
                since = datetime.now().astimezone().isoformat(" ", "seconds")
                os.ftruncate(descriptor, 0)
                os.write(
                    descriptor,
                    json.dumps(
                        {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
                    ).encode(),
                )
                return descriptor, made
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _refuse_foreign(descriptor: int, path: Path) -> bool:
    """Whether a run of ours made a lock; False of an empty file. What holds anything else is
    refused."""
    facts = os.fstat(descriptor)
    ours = stat.S_ISREG(facts.st_mode) and facts.st_nlink <= 1
    content = (
        os.pread(descriptor, 4096, 0).strip(b"\0") if ours and facts.st_size else b""
    )  # a power failure may leave zeros
    if not ours or (content and set(_parsed(content)) != _FACTS):
        raise RunFolderError(
            f"{path} is in the way: it is not a lock of layerscope's. Move it, or choose another out=."
        )
    return bool(content)


def _is_file(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one at `path`: another process may have removed it before
    we had the lock."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _flock(descriptor: int) -> bool | None:
    """Whether the lock is ours now; None on a disk (or a system) without locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _read_holder(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError):
        return _parsed(path.read_bytes())
    return {}


def _parsed(content: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        holder = json.loads(content)
        if isinstance(holder, dict):
            return holder
    return {}


def _is_gone(holder: dict[str, Any]) -> bool:
    """Whether the process was of this machine and has ended."""
    pid = holder.get("pid")
    if not isinstance(pid, int) or holder.get("host") != socket.gethostname():
        return False
    return not atomic.is_running(pid)


def _refusal(path: Path, about: Path, holder: dict[str, Any], by_hand: bool) -> str:
    who = f"process {holder.get('pid', '?')} on {holder.get('host', 'another machine')}, since {holder.get('since', '?')}"
    advice = "Wait until it ends, stop it, or choose another out=."
    if by_hand:
        advice += f" If that process is gone, delete {path}."
    return f"another process is writing the run in {about} ({who}). {advice}"
