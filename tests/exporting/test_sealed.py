"""An exported folder carries checksums: what is damaged is named, and never used in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import layerscope
from layerscope import packages
from layerscope.errors import LayerscopeError
from layerscope.exporting.job import Inside, export
from layerscope.models.sealed import check_export, damaged
from layerscope.models.source import resolve
from layerscope.store import RunFolder
from tests.cli.support import run_main
from tests.faults.commands import TEXTS
from tests.tiny import tiny_model

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return export(
        tiny_model("llama"),
        2,
        readout="plain/mean/raw/keep/none",
        out=tmp_path / "model",
        inside=Inside(brief=True),
    ).path


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(bytes(raw))


def test_every_file_that_decides_is_checked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert damaged(folder) == []
    names = {check.path.relative_to(folder).as_posix() for check in check_export(folder)}
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
        assert [check.path.name for check in damaged(folder)] == [Path(name).name]
        ended = run_main(monkeypatch, capsys, "verify", folder)
        assert ended.code == 2
        assert f"damaged  {folder / name}" in ended.out
        (folder / name).write_bytes(before)
    (folder / "model.safetensors").unlink()
    assert [check.reason for check in damaged(folder)] == ["it is missing"]


def test_verify_reads_every_byte(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    resolve(folder)  # checksums are remembered from here on
    monkeypatch.setattr(packages, "file_sha256", lambda path: pytest.fail("a remembered checksum"))
    file, before = folder / "model.safetensors", (folder / "model.safetensors").stat()
    flip(file)
    monkeypatch.setattr(
        Path,
        "stat",
        lambda path, stat=Path.stat, **given: before if path == file else stat(path, **given),
    )
    assert run_main(monkeypatch, capsys, "verify", folder).code == 2
    assert [check.path for check in damaged(folder)] == [file]


def test_an_export_of_an_earlier_version_is_not_verified(folder: Path) -> None:
    facts = json.loads((folder / "layerscope.json").read_text())
    (folder / "layerscope.json").write_text(
        json.dumps({k: v for k, v in facts.items() if k not in ("files", "checksum")})
    )
    assert [check.status for check in check_export(folder)] == ["not verified"]
    (folder / "layerscope.json").write_text(json.dumps({"kind": "other"}))
    assert check_export(folder) == []


def test_a_damaged_improvement_is_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, out = tiny_model("llama"), tmp_path / "better"
    (tmp_path / "there").mkdir()
    out.symlink_to(tmp_path / "there")
    texts = [f"{text} {i}" for i in range(3) for text in TEXTS]

    def improve() -> layerscope.Improved:
        settings = {"judge": "none", "templates": ["one-word"], "max_length": 48, "progress": False}
        return layerscope.improve(model, texts, out=out, store=tmp_path / "store", **settings)

    wanted = improve().encode(TEXTS)
    flip(out / "model.safetensors")
    (out / "notes.txt").write_text("my notes")
    read = layerscope.load_run(out)
    with pytest.raises(
        LayerscopeError, match=r"model\.safetensors is damaged .its checksum does not match"
    ):
        read.encode(TEXTS)
    assert improve().encode(TEXTS) == pytest.approx(wanted, abs=1e-5)
    assert "the run is computed again" in caplog.text
    assert damaged(out) == []
    flip(out / "candidates.parquet")
    improve()
    assert damaged(out) == []
    assert (out / "notes.txt").read_text() == "my notes"
    flip(out / "candidates.csv")
    improve()
    assert RunFolder(out).damaged() == []
    assert out.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["better", "store", "there"]


def test_a_damaged_export_is_told_when_it_is_read(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    resolve(folder)
    assert caplog.text == ""
    flip(folder / "modules.json")
    resolve(folder)
    assert "modules.json is not what was exported (its checksum does not match)" in caplog.text
