"""An exported folder carries checksums: `verify` names what is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from layerscope.errors import RunFolderError
from layerscope.exporting import Exported
from layerscope.models.source import resolve
from layerscope.store import checked
from layerscope.store.records import check_files
from tests.cli.support import run_main
from tests.exporting.support import brief_export
from tests.tiny import tiny_model

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return brief_export(tiny_model("llama"), 2, "plain/mean/raw/keep/none", tmp_path / "model").path


def damaged(folder: Path) -> list[tuple[Path, str]]:
    return [(path, problem) for path, problem in check_files(folder) if problem]


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(bytes(raw))


def test_every_file_that_decides_is_checked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert damaged(folder) == []
    names = {path.relative_to(folder).as_posix() for path, _ in check_files(folder)}
    assert {
        "layerscope.json",
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "modules.json",
    } <= names
    (folder / "README.md").write_text("my own words")
    assert damaged(folder) == []  # people edit it
    for name in sorted(names):
        before = (folder / name).read_bytes()
        flip(folder / name)
        assert [path.name for path, _ in damaged(folder)] == [Path(name).name]
        ended = run_main(monkeypatch, capsys, "verify", folder)
        assert ended.code == 2
        assert f"damaged  {folder / name}" in ended.out
        (folder / name).write_bytes(before)
    (folder / "model.safetensors").unlink()
    assert [problem for _, problem in damaged(folder)] == ["it is missing"]


def test_verify_reads_every_byte(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    resolve(folder)  # checksums are remembered from here on
    file, before = folder / "model.safetensors", (folder / "model.safetensors").stat()
    flip(file)
    monkeypatch.setattr(
        Path,
        "stat",
        lambda path, stat=Path.stat, **given: before if path == file else stat(path, **given),
    )
    assert run_main(monkeypatch, capsys, "verify", folder).code == 2
    assert [path for path, _ in damaged(folder)] == [file]


def test_an_export_of_a_newer_version_is_refused(folder: Path) -> None:
    facts = json.loads((folder / "layerscope.json").read_text(encoding="utf-8"))
    checked.write_json(folder / "layerscope.json", {**facts, "layerscope": "9.1.0"})
    with pytest.raises(RunFolderError, match=r"was written by layerscope 9\.1\.0"):
        Exported.load(folder)
