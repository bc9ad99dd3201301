"""`export --push` against an emulated hub: what arrives, what never does, and what is refused
before anything is sent."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import layerscope
from layerscope.errors import ExportError, LayerscopeError
from layerscope.exporting.publishing import pack, push
from layerscope.store.checked import check_files
from tests.cli.support import Ended, assert_refused, run_main
from tests.exporting.conftest import here, verified_here
from tests.faults.conftest import files, hub, other_files
from tests.faults.hub import Hub, Repository, Request
from tests.improving.test_improve import some_texts
from tests.tiny import tiny_model

__all__ = ["files", "here", "hub", "other_files"]
TEXTS = some_texts(40)
pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def logged_in(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("HF_TOKEN", hub.token)
    return hub


@pytest.fixture(scope="module")
def improved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("improved") / "better"
    settings = {"judge": "none", "templates": ["one-word"], "max_length": 64, "progress": False}
    with verified_here():
        layerscope.improve(tiny_model("llama"), TEXTS, out=out, **settings)
    return out


def test_a_folder_arrives_whole_and_without_texts(
    logged_in: Hub, improved: Path, tmp_path: Path
) -> None:
    (improved / "notes.txt").write_text(TEXTS[0])
    parcel = pack(improved, "me/better")
    tables = {"map.safetensors", "neighbors.csv", "neighbors.parquet"}
    assert {*tables, "manifest.json", "notes.txt"} <= set(parcel.stays)
    assert "private" in str(parcel)
    address = push(parcel)
    assert address == f"{logged_in.address}/me/better"
    repository = logged_in.models["me/better"]
    assert repository.private
    sent = repository.revisions["main"]
    assert sent["model.safetensors"] == (improved / "model.safetensors").read_bytes()
    assert not any(text.encode() in content for content in sent.values() for text in TEXTS)
    card = sent["README.md"].decode()
    assert 'SentenceTransformer("me/better")' in card
    assert "map.safetensors" not in card
    copied = tmp_path / "copied"
    for name, content in sent.items():
        (copied / name).parent.mkdir(parents=True, exist_ok=True)
        (copied / name).write_bytes(content)
    assert not any(problem for _, problem in check_files(copied))
    folders = (str(improved), str(copied))
    vectors = [layerscope.encode(folder, TEXTS[:5], progress=False) for folder in folders]
    assert np.array_equal(*vectors)
    assert layerscope.load_run(improved).push("me/better") == address  # again: it is ours


def test_what_was_not_saved_cannot_be_pushed(logged_in: Hub) -> None:
    settings = {"judge": "none", "templates": ["one-word"], "max_length": 64, "progress": False}
    with pytest.raises(LayerscopeError, match=r"Save it first: better.save\(FOLDER\)"):
        layerscope.improve(tiny_model("llama"), TEXTS, **settings).push("me/better")
    assert not logged_in.log


def test_on_the_command_line(
    logged_in: Hub,
    improved: Path,
    model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(*words: object) -> Ended:
        return run_main(monkeypatch, capsys, "export", *words)

    monkeypatch.chdir(tmp_path)
    cut = (model_folder, "--layer", "2", "--max-length", "32", "--out", "cut", "--overwrite")
    assert run(*cut, "--push", "me/cut").code == 1  # nobody answers
    assert_refused(run(*cut, "--push", "cut", "--yes"), "such as user/name, not 'cut'")
    assert not logged_in.log
    ended = run(*cut, "--push", "me/cut", "--yes", "--json")
    assert ended.code == 0, ended
    assert json.loads(ended.out)["url"] == f"{logged_in.address}/me/cut"
    assert "to the hub as me/cut (private): " in ended.err
    ended = run(improved, "--push", "me/open", "--public", "--yes")
    assert (ended.code, ended.out.strip()) == (0, f"{logged_in.address}/me/open")
    assert not logged_in.models["me/open"].private
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *words, **options: False)
    assert "nothing was sent" in run(improved, "--push", "me/not").err
    assert "me/not" not in logged_in.models
    monkeypatch.delenv("HF_TOKEN")
    ended = run(improved, "--push", "me/not", "--yes")
    assert ended.code == 1
    assert "needs an access token. Log in (`hf auth login`)" in ended.err


@pytest.mark.parametrize(
    ("present", "is_private", "is_public", "message"),
    [
        ({"model.bin": b"x"}, True, False, "holds no export of layerscope"),
        (
            {"layerscope.json": b"{}"},
            False,
            False,
            "is there and public, and stays so: say public=True",
        ),
        ({"layerscope.json": b"{}"}, True, True, "is there and private, and stays so"),
    ],
)
def test_a_repository_is_not_overwritten_or_opened_to_others(
    logged_in: Hub,
    improved: Path,
    present: dict[str, bytes],
    is_private: bool,
    is_public: bool,
    message: str,
) -> None:
    logged_in.models["me/there"] = Repository({"main": dict(present)}, private=is_private)
    with pytest.raises(ExportError, match=message):
        push(pack(improved, "me/there", public=is_public))
    assert logged_in.models["me/there"].revisions["main"] == present


def test_an_earlier_export_is_replaced_and_other_files_stay(logged_in: Hub, improved: Path) -> None:
    parcel = pack(improved, "me/again")
    push(parcel)
    main = logged_in.models["me/again"].revisions["main"]
    marker = json.loads(main["layerscope.json"])
    listed = {**marker["files"], "onnx/model.onnx": "a", "not/there.bin": "b"}
    main |= {
        "layerscope.json": json.dumps({**marker, "files": listed}).encode(),
        "onnx/model.onnx": b"old",
        "notes.txt": b"mine",
    }
    push(parcel)
    assert set(logged_in.models["me/again"].revisions["main"]) == {*parcel.files, "notes.txt"}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("--format", "onnx"), "formats"),
        (("--readout", "plain/mean"), "readout"),
        (("--out", "o"), "out"),
        (("--option", "normalize=false"), "normalize"),
        (("--model-option", "dtype=float16"), "dtype"),
    ],
)
def test_an_export_is_pushed_as_it_is(
    words: tuple[str, ...],
    name: str,
    logged_in: Hub,
    improved: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = run_main(monkeypatch, capsys, "export", improved, "--push", "me/as", "--yes", *words)
    assert_refused(ended, f"pushed as it is: leave out {name}")
    assert "me/as" not in logged_in.models


def test_what_cannot_be_pushed(
    logged_in: Hub, improved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ExportError, match="holds no export of layerscope"):
        pack(tmp_path, "me/x")

    def forbid(request: Request) -> bool:
        return request.path.endswith("/commit/main") and request.status(
            403, {"X-Error-Message": "no"}
        )

    logged_in.faults.append(forbid)
    with pytest.raises(
        ExportError, match=r"me/x could not be pushed: access is not granted \(HTTP 403\)"
    ):
        push(pack(improved, "me/x"))
    raw = (improved / "config.json").read_bytes()
    (improved / "config.json").write_bytes(raw + b" ")
    try:
        with pytest.raises(ExportError, match=r"config\.json is damaged"):
            pack(improved, "me/x")
    finally:
        (improved / "config.json").write_bytes(raw)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(ExportError, match="does not accept the access token"):
        push(pack(improved, "me/y"))
