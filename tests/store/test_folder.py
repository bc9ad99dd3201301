"""A run's folder: whose it is, who writes it, what is refused and removed, and what a table on disk
holds."""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

from layerscope.command import now
from layerscope.core.runs import read_manifest
from layerscope.errors import RunFolderError
from layerscope.store import RunFolder, checked
from layerscope.store.folder import config_key
from layerscope.store.locks import run_lock
from layerscope.store.records import check_files
from layerscope.vectors import Shard, VectorSpace

CONFIG = {
    "model": {"weights_sha256": "ab" * 32, "dtype": "float32"},
    "profile": {"alpha": 1.0, "final_norm": "raw"},
}


def started(path: Path, config: dict[str, object] = CONFIG) -> RunFolder:
    """A profile that was stopped."""
    folder = RunFolder(path)
    folder.write_manifest(
        {
            "kind": "profile",
            "key": config_key(config),
            "config": config,
            "status": "running",
            "owned": ["shards"],
        }
    )
    return folder


def status(folder: RunFolder) -> str:
    """What a run's folder is: without a run, complete, being written now, or stopped."""
    manifest = folder.manifest()
    if manifest is None or manifest["status"] == "complete":
        return "empty" if manifest is None else "complete"
    try:
        with run_lock(folder.path):
            return "stopped"
    except RunFolderError:
        return "running"


def test_a_new_folder_is_a_fresh_start(tmp_path: Path) -> None:
    assert RunFolder(tmp_path / "new").open(CONFIG) is None
    assert RunFolder(tmp_path).open(CONFIG) is None


def test_the_same_run_is_found_again(tmp_path: Path) -> None:
    held = started(tmp_path / "run").open(CONFIG)
    assert held is not None
    assert held["status"] == "running"


def test_keys_do_not_depend_on_the_order_of_settings() -> None:
    turned = {name: dict(reversed(value.items())) for name, value in reversed(CONFIG.items())}
    assert config_key(turned) == config_key(CONFIG)
    assert config_key({**CONFIG, "more": 1}) != config_key(CONFIG)


def test_another_run_is_refused_with_what_differs(tmp_path: Path) -> None:
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


def test_overwrite_replaces_another_run_and_its_shards(tmp_path: Path) -> None:
    folder = started(tmp_path)
    VectorSpace(folder.scratch).add(Shard([b"k" * 32], ["embed"], {"a": np.zeros((1, 1, 2))}))
    with folder.session("profile", {**CONFIG, "profile": {}}, overwrite=True) as session:
        assert session.earlier is None
        assert not folder.scratch.exists()


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(RunFolderError, match=r"not empty \(thesis.tex\) and holds no run"):
        RunFolder(tmp_path).open(CONFIG)
    assert RunFolder(tmp_path).open(CONFIG, overwrite=True) is None
    assert (tmp_path / "thesis.tex").read_text() == "important"


def test_what_a_killed_first_write_leaves_is_no_other_file(tmp_path: Path) -> None:
    (tmp_path / ".manifest.json.123.part").write_text('{"ki')
    assert RunFolder(tmp_path).open(CONFIG) is None


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(RunFolderError, match="out is a file; a run needs a folder"):
        RunFolder(tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b'{"key": "ab', b"\xff\xfe\x00", b"[]", b'"text"'])
def test_a_damaged_manifest_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(
        RunFolderError,
        match=r"manifest\.json cannot be read.*Delete the folder or choose another one",
    ):
        RunFolder(tmp_path).manifest()


def test_tables_as_parquet_and_csv_agree(tmp_path: Path) -> None:
    table = pd.DataFrame({"site": ["embed", "block.0"], "value": [1 / 3, np.nan], "n": [3, 0]})
    folder = RunFolder(tmp_path)
    folder.write_table("profile", table)
    pd.testing.assert_frame_equal(folder.read_table("profile"), table)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "profile.csv"), table, check_exact=True)
    with pytest.raises(
        RunFolderError,
        match=r"holds no prompts table\. Run the same command again with overwrite=True",
    ):
        folder.read_table("prompts")


def test_a_session_starts_resumes_and_finishes(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert status(folder) == "empty"
    with folder.session("profile", CONFIG, shard_size=3) as session:
        assert (session.earlier, session.finished) == (None, False)
        assert status(folder) == "running"
        folder.scratch.mkdir()
    assert status(folder) == "stopped"
    with folder.session("profile", CONFIG) as session:
        assert session.earlier is not None
        assert session.earlier["shard_size"] == 3
        assert folder.scratch.exists()
        folder.finish()
        session.folder.write_manifest(session.completed({"model": {"name": "tiny"}}))
    assert (status(folder), folder.scratch.exists()) == ("complete", False)
    manifest = read_manifest(tmp_path) or {}
    assert (manifest["model"], manifest["owned"], manifest["config"]) == (
        {"name": "tiny"},
        [],
        CONFIG,
    )
    with folder.session("profile", CONFIG) as session:
        assert session.finished
        assert not (tmp_path / "run.lock").exists()  # nothing to write
    with folder.session("profile", CONFIG, finished=lambda manifest: False) as session:
        assert not session.finished


def test_only_what_the_manifest_says_is_removed(tmp_path: Path) -> None:
    mine = tmp_path / "results" / "thesis.tex"
    mine.parent.mkdir()
    mine.write_text("important")
    folder = RunFolder(tmp_path)
    for _ in range(2):  # without a manifest, and beside another run of ours
        with (
            pytest.raises(RunFolderError, match="results is in the way"),
            folder.session("evaluation", CONFIG, overwrite=True, owned=["results", "texts"]),
        ):
            pass
        assert mine.read_text() == "important"
        with folder.session("profile", CONFIG, overwrite=True) as session:
            folder.scratch.mkdir()
            folder.finish()
            session.folder.write_manifest(session.completed({}))
    assert mine.read_text() == "important"
    # a folder that the user made after ours was removed
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "glass").write_text("mine")
    folder.finish()
    with (
        pytest.raises(RunFolderError, match="shards is in the way"),
        folder.session("profile", CONFIG, overwrite=True),
    ):
        pass
    assert (tmp_path / "shards" / "glass").read_text() == "mine"


@pytest.mark.parametrize(
    "owned",
    [
        ["../mine", "shards"],
        [".."],
        [""],
        ["."],
        ["/"],
        ["a\0b"],
        ["x" * 300],
        "..",
        None,
        5,
        [1, None, ["shards"]],
        {"..": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("overwrite", [True, False])
def test_a_manifest_cannot_reach_out_of_its_folder(
    tmp_path: Path, owned: object, overwrite: bool
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "list.json").write_text("[1]")
    folder = started(tmp_path / "run")
    (folder.path / "thesis.tex").write_text("important")
    folder.write_manifest({**(folder.manifest() or {}), "owned": owned})
    list(check_files(folder.path))
    with folder.session("profile", CONFIG, overwrite=overwrite):
        assert (tmp_path / "mine" / "list.json").exists()
        assert (folder.path / "thesis.tex").exists()


WRITER = """
import sys, time
from pathlib import Path
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
        assert status(folder) == "running"
        with (
            pytest.raises(
                RunFolderError,
                match=rf"another process is writing.*process {process.pid} on .*, since 20",
            ),
            folder.session("profile", {"a": 1}),
        ):
            pass
        process.communicate("\n")
    assert process.returncode == 0
    assert not (tmp_path / "run.lock").exists()
    with folder.session("profile", {"a": 1}) as session:
        assert session.earlier is not None
        with (
            pytest.raises(RunFolderError, match=f"process {os.getpid()} on"),
            folder.session("profile", {"a": 1}),
        ):
            pass


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    with writer(tmp_path) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert (tmp_path / "run.lock").exists()
    folder = RunFolder(tmp_path)
    assert status(folder) == "stopped"
    with folder.session("profile", {"a": 1}) as session:
        assert session.earlier is not None
        assert json.loads((tmp_path / "run.lock").read_text())["pid"] == os.getpid()
    assert not (tmp_path / "run.lock").exists()


def finished_run(path: Path, value: float = 0.5) -> RunFolder:
    """A finished evaluation with a table, a result and its items."""
    folder = RunFolder(path)
    with folder.session("evaluation", CONFIG, owned=["results", "texts"]) as session:
        assert not session.finished
        folder.write_table("scores", pd.DataFrame({"layer": [0, 1], "score": [value, 0.75]}))
        checked.write_json(path / "results" / "sts" / "a.json", {"score": 0.75})
        checked.write_arrays(path / "results" / "sts" / "a.safetensors", {"values": np.ones(3)})
        keys = np.ones((3, 32), np.uint8)
        checked.write_arrays(path / "texts" / "sts.safetensors", {"keys": keys})
        session.folder.write_manifest(session.completed({"model": {"name": "tiny"}}))
    return folder


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    assert [problem for _, problem in check_files(tmp_path) if problem] == []
    file = tmp_path / "scores.parquet"
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 4
    file.write_bytes(raw)
    with pytest.raises(RunFolderError, match=r"scores\.parquet is damaged .*overwrite=True"):
        folder.read_table("scores")
    assert [path for path, problem in check_files(tmp_path) if problem] == [file]
    for name in ("results/sts/a.json", "results/sts/a.safetensors", "texts/sts.safetensors"):
        raw = bytearray((tmp_path / name).read_bytes())
        raw[-10] ^= 4
        (tmp_path / name).write_bytes(raw)
    assert len([path for path, problem in check_files(tmp_path) if problem]) == 4
    with folder.session("evaluation", CONFIG, owned=["results", "texts"], overwrite=True):
        pass
    assert not (tmp_path / "results").exists()


def test_a_users_table_in_a_runs_folder_is_his_own(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    mine = tmp_path / "mine.parquet"
    mine.write_bytes(b"not even a table")
    with folder.session("evaluation", CONFIG, owned=["results", "texts"]) as session:
        assert session.finished
    assert mine.exists()


USERS = {
    "notes.txt": "my notes", "list.json": "[1, 2]", "facts.json": '{"a": 1}', "half.json": "{", "photos/cat.jpg": "a cat",
}  # fmt: skip


def users_files(folder: Path) -> list[Path]:
    """What a user may put anywhere, among it arrays of his own."""
    for name, content in USERS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    np.save(folder / "mine.npy", np.ones(3))
    save_file({"a": np.ones(3)}, folder / "mine.safetensors")
    content = (folder / "mine.safetensors").read_bytes()
    (folder / "cut.safetensors").write_bytes(content[:-3])
    names = (*USERS, "mine.npy", "mine.safetensors", "cut.safetensors")
    return [folder / name for name in names]


def test_files_of_the_user_stay_wherever_they_are(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    mine = [
        file
        for place in ("results/sts", "texts", "thesis")
        for file in users_files(tmp_path / place)
    ]
    before = {file: file.read_bytes() for file in mine}
    manifest = folder.manifest() or {}
    folder.write_manifest({**manifest, "owned": ["results", "texts", "thesis"]})  # edited by hand
    for overwrite in (False, True):
        with folder.session(
            "evaluation", CONFIG, overwrite=overwrite, owned=["results", "texts"]
        ) as session:
            pass
        kept = {file: file.read_bytes() for file in mine}
        assert kept == before
    assert not (tmp_path / "results" / "sts" / "a.json").exists()
    assert not (tmp_path / "results" / "sts" / "a.safetensors").exists()
    assert session.earlier is None


def test_overwrite_replaces_runs_and_no_other_files(tmp_path: Path) -> None:
    (tmp_path / "profile.parquet").write_text("my own")
    with pytest.raises(
        RunFolderError,
        match=r"is not empty \(profile.parquet\) and holds no run, and only runs are replaced",
    ):
        RunFolder(tmp_path).session("profile", CONFIG, overwrite=True).__enter__()
    assert (tmp_path / "profile.parquet").read_text() == "my own"


def test_an_edited_manifest_is_refused(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    text = (tmp_path / "manifest.json").read_text()
    (tmp_path / "manifest.json").write_text(text.replace('"tiny"', '"tinz"'))
    with pytest.raises(
        RunFolderError, match=r"manifest\.json cannot be read .*checksum.*damaged or edited"
    ):
        folder.manifest()


def test_what_a_kill_left_is_swept_by_the_next_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with folder.session("profile", CONFIG):
        folder.scratch.mkdir()
    figure = tmp_path / ".figure.svg.9-0a1b2c3d.part"
    left = [
        tmp_path / ".profile.parquet.77-0a1b2c3d.part",
        figure,
        folder.scratch / ".000001.safetensors.9-0a1b2c3d.part",
    ]
    report = tmp_path / ".report.html.9-0a1b2c3d.part"  # somebody else may be writing it
    for path in (*left, report):
        path.write_text("half")
    with folder.session("profile", CONFIG) as session:
        assert not any(path.exists() for path in left)
        assert report.exists()
        folder.write_table("profile", pd.DataFrame({"a": [1]}))
        session.folder.write_manifest(
            session.completed({})
        )  # and is killed before its scratch folder goes
    assert folder.scratch.exists()
    with folder.session("profile", CONFIG) as session:
        assert session.finished
    assert not folder.scratch.exists()
    assert not any(problem for _, problem in check_files(tmp_path))


def test_what_a_kill_at_the_very_last_step_left_is_swept(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    left = (
        tmp_path / ".manifest.json.9-0a1b2c3d.part"
    )  # of the manifest that no longer names the scratch folder
    left.write_text("half")
    with folder.session("evaluation", CONFIG, owned=["results", "texts"]) as session:
        assert session.finished
    assert not left.exists()


def test_a_folder_of_several_runs_is_swept_too(tmp_path: Path) -> None:
    left = [
        tmp_path / name for name in (".sweep.parquet.9-0a1b2c3d.part", "..sweep.9-0a1b2c3d.part")
    ]
    for path in left:
        path.write_text("half")
    with RunFolder(tmp_path).lock(".sweep"):
        assert not any(path.exists() for path in left)


def test_no_cell_of_a_csv_file_is_a_formula(tmp_path: Path) -> None:
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "plain", None, "a=b"]
    RunFolder(tmp_path).write_table(
        "t", pd.DataFrame({"text": texts, "value": [-0.5] * 8, "n": [-1] * 8})
    )
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["text"] for row in rows] == [
        "'=1+1",
        "'+1",
        "'-1",
        "'@SUM(A1)",
        "'\t=1",
        "plain",
        "",
        "a=b",
    ]
    assert {(row["value"], row["n"]) for row in rows} == {("-0.5", "-1")}
    assert pd.read_parquet(tmp_path / "t.parquet")["text"].tolist()[:6] == texts[:6]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
@pytest.mark.parametrize(
    ("mask", "file", "folder"),
    [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700), (0o002, 0o664, 0o775)],
)
def test_what_is_written_has_the_rights_that_the_user_wants(
    mask: int, file: int, folder: int, tmp_path: Path
) -> None:
    before = os.umask(mask)
    try:
        run = RunFolder(tmp_path / "new" / "run")
        with run.session("profile", {"a": 1}):
            run.write_table("t", pd.DataFrame({"a": [1]}))
            run.write_manifest({"kind": "profile", "status": "complete"})
    finally:
        os.umask(before)
    modes = {
        path.name: path.stat().st_mode & 0o777
        for path in (tmp_path / "new").rglob("*")
        if path.is_file()
    }
    assert {modes[name] for name in ("t.parquet", "t.csv", "manifest.json")} == {file}
    assert {
        path.stat().st_mode & 0o777 for path in (tmp_path / "new", tmp_path / "new" / "run")
    } == {folder}


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="Windows sets its time zone elsewhere")
def test_a_run_goes_on_in_another_time_zone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    try:
        for zone in (
            "Pacific/Kiritimati",
            "America/Los_Angeles",
            "Asia/Kolkata",
            "UTC",
        ):  # from 14 hours before to 8 after
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            with RunFolder(tmp_path).session("profile", CONFIG, started=now()) as session:
                assert (session.earlier is None) == (zone == "Pacific/Kiritimati")
                started.append(datetime.fromisoformat(now()))
                held = (tmp_path / "run.lock").read_text(encoding="utf-8")
                assert re.search(r"\d\d:\d\d:\d\d[+-]\d\d:\d\d", held), held
    finally:
        monkeypatch.undo()
        time.tzset()
    assert all(0 <= (b - a).total_seconds() < 60 for a, b in itertools.pairwise(started))
