"""A run's folder: whose it is, who writes it, what is refused and removed, and what a table on disk
holds."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

from layerscope.errors import RunFolderError
from layerscope.store import RunFolder, checked
from layerscope.store.atomic import run_lock
from layerscope.store.checked import check_files
from layerscope.vectors import Shard, VectorSpace

CONFIG = {
    "model": {"weights_sha256": "ab" * 32, "dtype": "float32"},
    "profile": {"alpha": 1.0, "final_norm": "raw"},
}
OWNED = ["results", "texts"]


def started(path: Path) -> RunFolder:
    """A profile that was stopped, with a shard."""
    folder = RunFolder(path)
    with folder.session("profile", CONFIG):
        shard = Shard([b"k" * 32], ["embed"], {"a": np.zeros((1, 1, 2))})
        VectorSpace(folder.scratch).add(shard)
    return folder


def finished(path: Path) -> RunFolder:
    """A finished evaluation with a table, a result and its items."""
    folder = RunFolder(path)
    with folder.session("evaluation", CONFIG, owned=OWNED) as session:
        assert not session.finished
        folder.write_table("scores", pd.DataFrame({"layer": [0, 1], "score": [0.5, 0.75]}))
        checked.write_json(path / "results" / "sts" / "a.json", {"score": 0.75})
        checked.write_arrays(path / "results" / "sts" / "a.safetensors", {"values": np.ones(3)})
        keys = np.ones((3, 32), np.uint8)
        checked.write_arrays(path / "texts" / "sts.safetensors", {"keys": keys})
        folder.write_manifest(session.completed({"model": {"name": "tiny"}}))
    return folder


def damage(file: Path, place: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[place] ^= 4
    file.write_bytes(raw)


def test_a_run_starts_resumes_and_finishes(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder.open(CONFIG) is None
    with folder.session("profile", CONFIG, started="now") as session:
        assert not session.finished
        with pytest.raises(RunFolderError, match="another process"), run_lock(folder.path):
            pass
        folder.scratch.mkdir()
    with folder.session("profile", CONFIG) as session:
        assert not session.finished
        assert folder.scratch.exists()
        folder.write_manifest(session.completed({"model": {"name": "tiny"}}))
        folder.finish()
    assert not folder.scratch.exists()
    manifest = folder.manifest() or {}
    assert (manifest["model"], manifest["owned"], manifest["config"]) == (
        {"name": "tiny"},
        [],
        CONFIG,
    )
    with folder.session("profile", CONFIG) as session:
        assert session.finished
        assert not (folder.path / "run.lock").exists()  # nothing to write
    with folder.session("profile", CONFIG, finished=lambda manifest: False) as session:
        assert not session.finished


def test_another_run_is_refused_with_what_differs_or_replaced(tmp_path: Path) -> None:
    other = {
        "model": {**CONFIG["model"], "dtype": "bfloat16"},
        "profile": {"alpha": 2.0, "final_norm": "raw"},
    }
    folder = started(tmp_path)
    with pytest.raises(RunFolderError) as caught:
        folder.open(other)
    message = str(caught.value)
    assert 'model.dtype: "float32" there, "bfloat16" here' in message
    assert "profile.alpha: 1.0 there, 2.0 here" in message
    assert "final_norm" not in message
    assert "overwrite=True" in message
    with folder.session("profile", other, overwrite=True):
        assert not folder.scratch.exists()


def test_files_that_are_in_the_way(tmp_path: Path) -> None:
    notes = tmp_path / "thesis.tex"
    notes.write_text("important")
    with pytest.raises(RunFolderError, match=r"not empty \(thesis.tex\) and holds no run"):
        RunFolder(tmp_path).open(CONFIG)
    assert RunFolder(tmp_path).open(CONFIG, overwrite=True) is None
    table = tmp_path / "profile.parquet"
    table.write_text("my own")
    with pytest.raises(RunFolderError, match=r"\(profile.parquet\) .*, and only runs are replaced"):
        RunFolder(tmp_path).open(CONFIG, overwrite=True)
    assert (notes.read_text(), table.read_text()) == ("important", "my own")
    with pytest.raises(RunFolderError, match=r"thesis\.tex is a file; a run needs a folder"):
        RunFolder(notes)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".manifest.json.123.part").write_text('{"ki')  # of a killed first write
    assert RunFolder(tmp_path / "new").open(CONFIG) is None


@pytest.mark.parametrize("content", [b"", b'{"key": "ab', b"\xff\xfe\x00", b"[]", None])
def test_a_damaged_manifest_is_named(tmp_path: Path, content: bytes | None) -> None:
    folder = finished(tmp_path)
    file = tmp_path / "manifest.json"
    file.write_bytes(
        file.read_bytes().replace(b'"tiny"', b'"tinz"') if content is None else content
    )
    with pytest.raises(
        RunFolderError, match=r"manifest\.json .*Delete the folder or choose another"
    ):
        folder.manifest()


def test_tables_as_parquet_and_csv_agree(tmp_path: Path) -> None:
    table = pd.DataFrame({"site": ["embed", "block.0"], "value": [1 / 3, np.nan], "n": [3, 0]})
    folder = RunFolder(tmp_path)
    folder.write_table("profile", table)
    pd.testing.assert_frame_equal(folder.read_table("profile"), table)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "profile.csv"), table, check_exact=True)
    with pytest.raises(RunFolderError, match=r"holds no prompts table\. Run the same command"):
        folder.read_table("prompts")


def test_no_cell_of_a_csv_file_is_a_formula(tmp_path: Path) -> None:
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "plain", None, "a=b"]
    table = pd.DataFrame({"text": texts, "value": [-0.5] * 8, "n": [-1] * 8})
    RunFolder(tmp_path).write_table("t", table)
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    cells = ["'=1+1", "'+1", "'-1", "'@SUM(A1)", "'\t=1", "plain", "", "a=b"]
    assert [row["text"] for row in rows] == cells
    assert {(row["value"], row["n"]) for row in rows} == {("-0.5", "-1")}
    assert pd.read_parquet(tmp_path / "t.parquet")["text"].tolist()[:6] == texts[:6]


def test_a_folder_of_the_user_keeps_its_files(tmp_path: Path) -> None:
    mine = tmp_path / "results" / "thesis.tex"
    mine.parent.mkdir()
    mine.write_text("important")
    folder = RunFolder(tmp_path)
    for _ in range(2):  # without a manifest, and beside another run of ours
        with folder.session("evaluation", CONFIG, overwrite=True, owned=OWNED):
            assert mine.read_text() == "important"
        with folder.session("profile", CONFIG, overwrite=True) as written:
            folder.write_manifest(written.completed({}))
    assert mine.read_text() == "important"


WRITER = """
import sys
from layerscope.store import RunFolder
with RunFolder(sys.argv[1]).session("profile", {"a": 1}):
    print("writing", flush=True)
    sys.stdin.readline()
"""


def writer(path: Path) -> subprocess.Popen[str]:
    """Another process that writes a run until it is told to end."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=-1, stdout=-1, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    return process


def test_two_processes_do_not_write_one_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with writer(tmp_path) as process:
        named = rf"another process is writing.*process {process.pid} on .*, since 20"
        with pytest.raises(RunFolderError, match=named), folder.session("profile", {"a": 1}):
            pass
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert (tmp_path / "run.lock").exists()
    with folder.session("profile", {"a": 1}) as session:  # the lock of the killed one
        assert not session.finished
        assert json.loads((tmp_path / "run.lock").read_text())["pid"] == os.getpid()
    assert not (tmp_path / "run.lock").exists()


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    assert [problem for _, problem in check_files(tmp_path) if problem] == []
    file = tmp_path / "scores.parquet"
    damage(file, file.stat().st_size // 2)
    with pytest.raises(RunFolderError, match=r"scores\.parquet is damaged .*overwrite=True"):
        folder.read_table("scores")
    assert [path for path, problem in check_files(tmp_path) if problem] == [file]
    for name in ("results/sts/a.json", "results/sts/a.safetensors", "texts/sts.safetensors"):
        damage(tmp_path / name, -10)
    assert len([path for path, problem in check_files(tmp_path) if problem]) == 4
    with folder.session("evaluation", CONFIG, owned=OWNED, overwrite=True):
        pass
    assert not (tmp_path / "results").exists()


def test_files_of_the_user_stay_wherever_they_are(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    mine = {tmp_path / "mine.parquet": b"not even a table"}
    for place in ("results/sts", "texts"):
        save_file({"a": np.ones(3)}, tmp_path / place / "mine.safetensors")
        arrays = (tmp_path / place / "mine.safetensors").read_bytes()
        contents = {
            "notes.txt": b"my notes",
            "facts.json": b'{"a": 1}',
            "half.json": b"{",
            "photos/cat.jpg": b"a cat",
            "mine.safetensors": arrays,
            "cut.safetensors": arrays[:-3],
        }
        mine |= {tmp_path / place / name: content for name, content in contents.items()}
    for file, content in mine.items():
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
    for overwrite in (False, True):
        with folder.session("evaluation", CONFIG, overwrite=overwrite, owned=OWNED) as session:
            assert session.finished is not overwrite
        assert {file: file.read_bytes() for file in mine} == mine
    assert not (tmp_path / "results" / "sts" / "a.json").exists()
    assert not (tmp_path / "results" / "sts" / "a.safetensors").exists()


def test_what_a_kill_left_is_swept_by_the_next_run(tmp_path: Path) -> None:
    folder = started(tmp_path)
    left = [
        tmp_path / ".profile.parquet.77-0a1b2c3d.part",
        tmp_path / ".figure.svg.9-0a1b2c3d.part",
        folder.scratch / ".000001.safetensors.9-0a1b2c3d.part",
    ]
    report = tmp_path / ".report.html.9-0a1b2c3d.part"  # somebody else may be writing it
    for path in (*left, report):
        path.write_text("half")
    with folder.session("profile", CONFIG) as session:
        assert not any(path.exists() for path in left)
        assert report.exists()
        folder.write_manifest(session.completed({}))  # and is killed before its shards go
    assert folder.scratch.exists()
    left[0].write_text("half")
    with folder.session("profile", CONFIG) as session:
        assert session.finished
    assert not folder.scratch.exists()
    assert not left[0].exists()
    left[0].write_text("half")
    with folder.lock(".sweep"):  # a folder of several runs
        assert not left[0].exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
@pytest.mark.parametrize(("mask", "file"), [(0o022, 0o644), (0o077, 0o600)])
def test_files_have_the_rights_that_the_user_wants(mask: int, file: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        run = RunFolder(tmp_path / "run")
        with run.session("profile", {"a": 1}):
            run.write_table("t", pd.DataFrame({"a": [1]}))
    finally:
        os.umask(before)
    names = ("t.parquet", "t.csv", "manifest.json")
    assert {(run.path / name).stat().st_mode & 0o777 for name in names} == {file}
    assert run.path.stat().st_mode & 0o777 == 0o777 & ~mask
