"""One writer at a time, and runs that end before their time: stopped, a full disk, weights that are
not numbers."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

import layerscope
from layerscope.errors import LayerscopeError, RunFolderError
from layerscope.exporting import cutting, job, verifying
from layerscope.improving import Improved
from layerscope.improving.fit import working_folder
from layerscope.models import LoadedModel
from layerscope.vectors import Shard, VectorSpace
from tests.exporting.conftest import reload_here
from tests.improving.test_improve import some_texts
from tests.tiny import tiny_model

pytest.importorskip("sentence_transformers")
pytestmark = pytest.mark.usefixtures("here")
TEXTS = some_texts(28)


def improve(model: LoadedModel, out: Path, **options):
    settings = {
        "judge": "none",
        "templates": ["one-word"],
        "max_length": 96,
        "progress": False,
        **options,
    }
    return layerscope.improve(model, TEXTS, out=out, **settings)


@pytest.fixture
def llama() -> LoadedModel:
    return tiny_model("llama")


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if "better" in path.name)


def test_a_second_process_is_refused_and_told_who_is_first(
    llama: LoadedModel, tmp_path: Path
) -> None:
    with working_folder(tmp_path / "better"), pytest.raises(RunFolderError) as refused:
        improve(llama, tmp_path / "better")
    told = str(refused.value)
    assert (
        f"another process is writing the run in {tmp_path / 'better'} (process {os.getpid()} on "
        in told
    )
    assert "Wait until it ends, stop it, or choose another out=." in told
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        pytest.param(RuntimeError("the driver went away"), marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_goes_on_and_ends_as_it_would_have(
    llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    whole = improve(llama, tmp_path / "whole", store=tmp_path / "another-store")
    own, added = VectorSpace.add, []

    def add(self: VectorSpace, shard: Shard):
        if len(added) == 2:
            raise error
        added.append(len(shard.keys))
        own(self, shard)

    monkeypatch.setattr(VectorSpace, "add", add)
    with pytest.raises(type(error)):
        improve(llama, tmp_path / "better")
    assert left_in(tmp_path) == []
    monkeypatch.setattr(
        VectorSpace,
        "add",
        lambda self, shard: (added.append(len(shard.keys)), own(self, shard)),
    )
    resumed = improve(llama, tmp_path / "better")
    assert left_in(tmp_path) == ["better"]
    assert resumed.table.equals(whole.table)
    assert resumed.choice.readout == whole.choice.readout
    first = sum(added)
    added.clear()
    improve(llama, tmp_path / "third", store=tmp_path / "third-store")
    assert first == sum(added)  # what was read before the interruption was not read again


def test_a_run_that_is_stopped_while_it_writes_leaves_nothing_behind(
    llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(job, "finish", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            improve(llama, tmp_path / "better")
    assert left_in(tmp_path) == []
    improve(llama, tmp_path / "better")
    assert layerscope.load_run(tmp_path / "better").kind == "improve"


def test_a_full_disk_is_told_and_the_same_command_goes_on(
    llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)  # while vectors are stored
        with pytest.raises(
            RunFolderError, match=r"no space left on the disk.*run the same command again"
        ):
            improve(llama, tmp_path / "better")
    with monkeypatch.context() as patched:
        patched.setattr(cutting, "write_weights", full)  # while the folder is written
        with pytest.raises(LayerscopeError, match="no space left"):
            improve(llama, tmp_path / "better")
    assert left_in(tmp_path) == []
    assert improve(llama, tmp_path / "better").folder == tmp_path / "better"


def test_weights_that_are_not_numbers_are_named(llama: LoadedModel, tmp_path: Path) -> None:
    llama.anatomy.blocks[1].mlp.down_proj.weight.data[0, 0] = float("nan")
    told = r"tiny-llama: NaN in the states at block\.1 \(layer 2.*The weights may be damaged: check the model\."
    with pytest.raises(LayerscopeError, match=told):
        improve(llama, tmp_path / "better")
    assert left_in(tmp_path) == []


def test_what_is_there_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "better").mkdir()
    (tmp_path / "better" / "mine.txt").write_text("mine")
    with pytest.raises(LayerscopeError, match="exists and is not empty"):
        layerscope.improve("a-model-that-does-not-exist", TEXTS, out=tmp_path / "better")
    assert left_in(tmp_path) == ["better"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Improved:
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(verifying, "reload", reload_here)
        return improve(tiny_model("llama"), folder / "better", store=folder / "store")


@pytest.mark.parametrize("table", ["candidates", "neighbors"])
def test_a_damaged_table_is_named(finished: Improved, tmp_path: Path, table: str) -> None:
    shutil.copytree(finished.folder, tmp_path / "better")
    file = tmp_path / "better" / f"{table}.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(RunFolderError, match=r"is damaged .*overwrite=True"):
        layerscope.load_run(tmp_path / "better")
