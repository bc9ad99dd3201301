"""A run that is cut off goes on where it stopped and ends with the very table it would have had."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from layerscope.errors import RunFolderError
from layerscope.models import LoadedModel
from layerscope.profiling import Profile, encode, profile
from layerscope.store import atomic
from layerscope.vectors import Shard, VectorSpace
from tests.profiling.support import assert_same_numbers
from tests.tiny import tiny_model

ROOT = Path(__file__).parents[2]
SHARD = 3
OPTIONS: dict[str, Any] = {"max_length": 32, "views": 2, "permutations": 3}
Written = list[tuple[bytes, ...]]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "choose_shard_size", lambda *_: SHARD)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def whole(model: LoadedModel, texts: list[str]) -> Profile:
    """The run that nothing stops."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encode, "choose_shard_size", lambda *_: SHARD)
        return profile(model, texts, **OPTIONS)


@pytest.fixture
def written(whole: Profile, monkeypatch: pytest.MonkeyPatch) -> Written:
    """The texts of each shard that was stored, in order."""
    shards: Written = []
    add = VectorSpace.add

    def noted(self: VectorSpace, shard: Shard) -> None:
        add(self, shard)
        shards.append(tuple(shard.keys))

    monkeypatch.setattr(VectorSpace, "add", noted)
    return shards


@contextmanager
def stopped(
    model: LoadedModel, written: Written, shards: int, error: BaseException | None = None
) -> Iterator[None]:
    """Let the model fail once so many shards are stored, and expect that error."""
    error = error or KeyboardInterrupt()

    def fail(*_: object) -> None:
        if len(written) >= shards:
            raise error

    hook = model.anatomy.blocks[1].register_forward_pre_hook(fail)
    try:
        with pytest.raises(type(error)):
            yield
    finally:
        hook.remove()


def parts(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name.endswith(".part")]


def test_a_finished_run_leaves_four_files(
    model: LoadedModel, texts: list[str], tmp_path: Path, written: Written
) -> None:
    run = profile(model, texts, out=tmp_path / "run", **OPTIONS)
    assert len(set(written)) == len(written) == 4
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["manifest.json", "profile.csv", "profile.parquet", "prompts.parquet"]
    back = Profile.load(tmp_path / "run")
    pd.testing.assert_frame_equal(back.table, run.table, check_exact=True)
    pd.testing.assert_frame_equal(back.prompts, run.prompts, check_exact=True)
    csv = pd.read_csv(tmp_path / "run" / "profile.csv")
    pd.testing.assert_frame_equal(csv, run.table, check_exact=True)
    assert profile(model, texts, out=tmp_path / "run", **OPTIONS).table.equals(run.table)
    assert len(written) == 4


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("the driver went away")])
def test_an_interrupted_run_goes_on(
    model: LoadedModel,
    texts: list[str],
    whole: Profile,
    tmp_path: Path,
    written: Written,
    error: BaseException,
) -> None:
    with stopped(model, written, 2, error):
        profile(model, texts, out=tmp_path, **OPTIONS)
    assert len(written) == 2
    with pytest.raises(RunFolderError, match=r"is not finished\. Run the same command again"):
        Profile.load(tmp_path)
    resumed = profile(model, texts, out=tmp_path, **OPTIONS)
    assert len(set(written)) == len(written) == 4  # the first two were not computed again
    pd.testing.assert_frame_equal(resumed.table, whole.table, check_exact=True)
    pd.testing.assert_frame_equal(resumed.prompts, whole.prompts, check_exact=True)
    assert resumed.manifest["seconds"]["resumed_prompts"] == 2 * SHARD


def test_a_run_goes_on_with_another_order_and_shards_of_another_size(
    model: LoadedModel,
    texts: list[str],
    tmp_path: Path,
    written: Written,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turned = texts[::-1]
    expected = profile(model, turned, **OPTIONS)
    written.clear()
    with stopped(model, written, 2):
        profile(model, texts, out=tmp_path, **OPTIONS)
    monkeypatch.setattr(encode, "choose_shard_size", lambda *_: 5)
    resumed = profile(model, turned, out=tmp_path, **OPTIONS)
    keys = [key for shard in written for key in shard]
    assert len(set(keys)) == len(keys) == len(texts)
    assert_same_numbers(resumed.table, expected.table, 1e-6)
    pd.testing.assert_frame_equal(resumed.prompts, expected.prompts, rtol=1e-6)


def test_a_full_disk_keeps_finished_shards(
    model: LoadedModel,
    texts: list[str],
    whole: Profile,
    tmp_path: Path,
    written: Written,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fsync = os.fsync

    def full(descriptor: int) -> None:
        if len(written) >= 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    no_space = r"no space left on the disk.*run the same command again"
    with monkeypatch.context() as patched:
        patched.setattr(atomic.os, "fsync", full)
        with pytest.raises(RunFolderError, match=no_space):
            profile(model, texts, out=tmp_path, **OPTIONS)
    assert parts(tmp_path) == []
    resumed = profile(model, texts, out=tmp_path, **OPTIONS)
    assert len(set(written)) == len(written) == 4
    pd.testing.assert_frame_equal(resumed.table, whole.table, check_exact=True)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_shard_is_computed_again(
    model: LoadedModel,
    texts: list[str],
    whole: Profile,
    tmp_path: Path,
    written: Written,
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with stopped(model, written, 3):
        profile(model, texts, out=tmp_path, **OPTIONS)
    file = min((tmp_path / "shards").iterdir())
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 16
    file.write_bytes({"flip": raw, "cut": raw[:-30], "empty": b""}[damage])
    resumed = profile(model, texts, out=tmp_path, **OPTIONS)
    assert (len(written), len(set(written))) == (5, 4)
    assert f"{file.name} is damaged" in caplog.text
    pd.testing.assert_frame_equal(resumed.table, whole.table, check_exact=True)


def test_a_damaged_table_of_a_finished_run_is_refused(
    model: LoadedModel, texts: list[str], tmp_path: Path
) -> None:
    first = profile(model, texts, out=tmp_path, **OPTIONS)
    for name in ("profile.parquet", "prompts.parquet"):
        raw = bytearray((tmp_path / name).read_bytes())
        raw[200] ^= 1
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(RunFolderError, match=f"{name} is damaged .*overwrite=True"):
            _ = Profile.load(tmp_path).prompts
        profile(model, texts, out=tmp_path, overwrite=True, **OPTIONS)
        pd.testing.assert_frame_equal(Profile.load(tmp_path).prompts, first.prompts)


KILLED = """
import os, signal, sys
from layerscope.profiling import encode, profile
from layerscope.store import atomic
from tests.tiny import tiny_model

encode.choose_shard_size = lambda *_: {shard}
replace = os.replace
shards = []

def die(source, target):
    if str(target).endswith(".safetensors"):
        shards.append(target)
    if len(shards) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)

atomic.os.replace = die
profile(tiny_model("llama"), {texts!r}, out=sys.argv[1], **{options!r})
"""


@pytest.mark.slow  # quickly: runs killed at any step, in tests/faults/test_killed.py
def test_a_killed_process_leaves_a_run_that_goes_on(
    model: LoadedModel, texts: list[str], whole: Profile, tmp_path: Path, written: Written
) -> None:
    script = KILLED.format(shard=SHARD, texts=texts, options=OPTIONS)
    command = [sys.executable, "-c", script, str(tmp_path / "run")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == -9, ended.stderr
    assert len(parts(tmp_path)) == 1
    resumed = profile(model, texts, out=tmp_path / "run", **OPTIONS)
    assert len(written) == 2
    assert parts(tmp_path) == []
    # Another process, whose threads may round otherwise.
    assert_same_numbers(resumed.table, whole.table, 1e-5)


def test_overwrite_computes_again(
    model: LoadedModel, texts: list[str], tmp_path: Path, written: Written
) -> None:
    first = profile(model, texts, out=tmp_path, **OPTIONS)
    other_norm = r"which differs in profile\.final_norm: \"applied\" there, \"raw\""
    with pytest.raises(RunFolderError, match=other_norm):
        profile(model, texts, out=tmp_path, final_norm="raw", **OPTIONS)
    with pytest.raises(RunFolderError, match="differs in corpus"):
        profile(model, texts[1:], out=tmp_path, **OPTIONS)
    with pytest.raises(RunFolderError, match=r"differs in model\.weights_sha256"):
        profile(tiny_model("llama", seed=1), texts, out=tmp_path, **OPTIONS)
    pd.testing.assert_frame_equal(Profile.load(tmp_path).table, first.table)  # nothing was touched
    count = len(written)
    raw = profile(model, texts, out=tmp_path, final_norm="raw", overwrite=True, **OPTIONS)
    assert len(written) == 2 * count
    pd.testing.assert_frame_equal(Profile.load(tmp_path).table, raw.table)


def test_a_folder_that_cannot_be_written(
    model: LoadedModel, texts: list[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot write"):
        profile(model, texts, out=tmp_path / "file" / "run", **OPTIONS)


def test_a_scratch_folder_is_left_nowhere(
    model: LoadedModel,
    texts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    written: Written,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert profile(model, texts, **OPTIONS).path is None
    with stopped(model, written, 5):
        profile(model, texts, **OPTIONS)
    assert len(written) == 5
    assert [path for path in tmp_path.iterdir() if path.name.startswith("layerscope-")] == []
