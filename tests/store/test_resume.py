"""A run that is cut off goes on where it stopped and ends with the very table it would have had."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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
OPTIONS = {"max_length": 32, "views": 2, "permutations": 3}
_WHOLE: list[Profile] = []


def undisturbed(model: LoadedModel, texts: list[str]) -> Profile:
    """The run that nothing stops, computed once."""
    if not _WHOLE:
        _WHOLE.append(profile(model, texts, **OPTIONS))
    return _WHOLE[0]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "choose_shard_size", lambda *_: SHARD)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny_model("llama")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, ...]]:
    """The texts of each shard that was stored, in order."""
    shards: list[tuple[bytes, ...]] = []
    own = VectorSpace.add

    def add(self: VectorSpace, shard: Shard) -> None:
        own(self, shard)
        shards.append(tuple(shard.keys))

    monkeypatch.setattr(VectorSpace, "add", add)
    return shards


def parts(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name.endswith(".part")]


def break_after(
    model: LoadedModel, written: list[tuple[bytes, ...]], shards: int, error: BaseException
) -> Callable[[], None]:
    def boom(*_: object) -> None:
        if len(written) >= shards:
            raise error

    return model.anatomy.blocks[1].register_forward_pre_hook(boom).remove


def test_a_finished_run_leaves_four_files(
    model: LoadedModel, texts: list[str], tmp_path: Path, written: list[tuple[bytes, ...]]
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
    tmp_path: Path,
    written: list[tuple[bytes, ...]],
    error: BaseException,
) -> None:
    whole = undisturbed(model, texts)
    written.clear()
    heal = break_after(model, written, 2, error)
    with pytest.raises(type(error)):
        profile(model, texts, out=tmp_path, **OPTIONS)
    heal()
    assert len(written) == 2
    with pytest.raises(RunFolderError, match=r"is not finished\. Run the same command again"):
        Profile.load(tmp_path)
    resumed = profile(model, texts, out=tmp_path, **OPTIONS)
    assert len(set(written)) == len(written) == 4  # the first two were not computed again
    pd.testing.assert_frame_equal(resumed.table, whole.table, check_exact=True)
    pd.testing.assert_frame_equal(resumed.prompts, whole.prompts, check_exact=True)
    assert resumed.manifest["seconds"]["resumed_prompts"] == 2 * SHARD
    assert resumed.manifest["status"] == "complete"


def test_a_run_goes_on_with_the_texts_in_another_order(
    model: LoadedModel, texts: list[str], tmp_path: Path, written: list[tuple[bytes, ...]]
) -> None:
    turned = texts[::-1]
    whole = profile(model, turned, **OPTIONS)
    written.clear()
    heal = break_after(model, written, 2, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        profile(model, texts, out=tmp_path, **OPTIONS)
    heal()
    resumed = profile(model, turned, out=tmp_path, **OPTIONS)
    assert len(set(written)) == len(written) == 4
    assert_same_numbers(resumed.table, whole.table, 1e-9)
    pd.testing.assert_frame_equal(resumed.prompts, whole.prompts)


def test_a_run_goes_on_with_shards_of_another_size(
    model: LoadedModel,
    texts: list[str],
    tmp_path: Path,
    written: list[tuple[bytes, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = undisturbed(model, texts)
    written.clear()
    heal = break_after(model, written, 1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        profile(model, texts, out=tmp_path, **OPTIONS)
    heal()
    monkeypatch.setattr(encode, "choose_shard_size", lambda *_: 5)
    resumed = profile(model, texts, out=tmp_path, **OPTIONS)
    keys = [key for shard in written for key in shard]
    assert len(set(keys)) == len(keys) == len(texts)
    assert_same_numbers(resumed.table, whole.table, 1e-6)


def test_a_full_disk_keeps_finished_shards(
    model: LoadedModel,
    texts: list[str],
    tmp_path: Path,
    written: list[tuple[bytes, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = undisturbed(model, texts)
    written.clear()
    fsync = os.fsync

    def full(descriptor: int) -> None:
        if len(written) >= 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(
        RunFolderError, match=r"no space left on the disk.*run the same command again"
    ):
        profile(model, texts, out=tmp_path, **OPTIONS)
    assert parts(tmp_path) == []
    monkeypatch.setattr(atomic.os, "fsync", fsync)
    resumed = profile(model, texts, out=tmp_path, **OPTIONS)
    assert len(set(written)) == len(written) == 4
    pd.testing.assert_frame_equal(resumed.table, whole.table, check_exact=True)


@pytest.mark.parametrize("how", ["flip", "cut", "empty"])
def test_a_damaged_shard_is_computed_again(
    model: LoadedModel,
    texts: list[str],
    tmp_path: Path,
    written: list[tuple[bytes, ...]],
    how: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = undisturbed(model, texts)
    written.clear()
    heal = break_after(model, written, 3, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        profile(model, texts, out=tmp_path, **OPTIONS)
    heal()
    file = min((tmp_path / "shards").iterdir())
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 16
    file.write_bytes({"flip": raw, "cut": raw[:-30], "empty": b""}[how])
    resumed = profile(model, texts, out=tmp_path, **OPTIONS)
    assert len(written) == 5
    assert len(set(written)) == 4
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
    model: LoadedModel, texts: list[str], tmp_path: Path, written: list[tuple[bytes, ...]]
) -> None:
    whole = undisturbed(model, texts)
    written.clear()
    script = KILLED.format(shard=SHARD, texts=texts, options=OPTIONS)
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == -9, ended.stderr
    assert len(parts(tmp_path)) == 1
    resumed = profile(model, texts, out=tmp_path / "run", **OPTIONS)
    assert len(written) == 2
    assert parts(tmp_path) == []
    assert_same_numbers(
        resumed.table, whole.table, 1e-5
    )  # another process, whose threads may round otherwise
    assert sorted(path.name for path in (tmp_path / "run").iterdir())[0] == "manifest.json"


def test_overwrite_computes_again(
    model: LoadedModel, texts: list[str], tmp_path: Path, written: list[tuple[bytes, ...]]
) -> None:
    first = profile(model, texts, out=tmp_path, **OPTIONS)
    with pytest.raises(
        RunFolderError,
        match=r"holds another run, which differs in profile\.final_norm: \"applied\" there, \"raw\"",
    ):
        profile(model, texts, out=tmp_path, final_norm="raw", **OPTIONS)
    with pytest.raises(RunFolderError, match="differs in the data"):
        profile(model, texts[1:], out=tmp_path, **OPTIONS)
    with pytest.raises(RunFolderError, match="differs in the model's weights"):
        profile(tiny_model("llama", seed=1), texts, out=tmp_path, **OPTIONS)
    pd.testing.assert_frame_equal(Profile.load(tmp_path).table, first.table)  # nothing was touched
    count = len(written)
    profile(model, texts, out=tmp_path, overwrite=True, **OPTIONS)
    assert len(written) == 2 * count
    raw = profile(model, texts, out=tmp_path, final_norm="raw", overwrite=True, **OPTIONS)
    pd.testing.assert_frame_equal(Profile.load(tmp_path).table, raw.table)


def test_what_cannot_be_written_is_told_in_words(
    model: LoadedModel, texts: list[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="is a file"):
        profile(model, texts, out=tmp_path / "file", **OPTIONS)
    with pytest.raises(RunFolderError, match="cannot write"):
        profile(model, texts, out=tmp_path / "file" / "run", **OPTIONS)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text('{"key"')
    with pytest.raises(RunFolderError, match="cannot be read"):
        profile(model, texts, out=tmp_path / "broken", **OPTIONS)


def test_a_scratch_folder_is_left_nowhere(
    model: LoadedModel,
    texts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    written: list[tuple[bytes, ...]],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = profile(model, texts, **OPTIONS)
    assert run.path is None
    heal = break_after(model, written, 5, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        profile(model, texts, **OPTIONS)
    heal()
    assert len(written) == 5
    assert [path for path in tmp_path.iterdir() if path.name.startswith("layerscope-")] == []
