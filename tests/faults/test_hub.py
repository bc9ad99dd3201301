"""The hub's faults, each as a result or as one clear line; what was fetched is what was
published."""

from __future__ import annotations

import gzip
import json
import logging
import time
from pathlib import Path

import pytest

from layerscope import load, profile
from layerscope.data import load_corpus
from layerscope.errors import DownloadError, LayerscopeError, ModelError, OfflineError
from layerscope.models.source import resolve
from layerscope_paper.sweeps.run import sweep
from tests.faults.conftest import LINES
from tests.faults.hub import Hub, Repository, Request


def test_a_model_and_its_revisions(
    hub: Hub, files: dict[str, bytes], other_files: dict[str, bytes]
) -> None:
    main, step = resolve("org/tiny"), resolve("org/tiny@step-2")
    assert (main.path / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert (step.path / "model.safetensors").read_bytes() == other_files["model.safetensors"]
    assert main.revision == hub.models["org/tiny"].commit("main")
    asked = len(hub.log)
    assert resolve(f"org/tiny@{main.revision}").path == main.path
    assert len(hub.log) == asked  # a commit that is here is not asked for again
    assert resolve("org/tiny", offline=True).path == main.path
    assert len(hub.log) == asked


def test_a_branch_is_read_once_in_a_run(hub: Hub, tmp_path: Path) -> None:
    run = profile("org/tiny", LINES, metrics=["prompt_entropy"], out=tmp_path / "run")
    assert hub.log.count("GET /api/models/org/tiny/revision/main") == 1
    assert run.manifest["model"]["revision"] == hub.models["org/tiny"].commit("main")
    assert run.manifest["model"]["name"] == "org/tiny"


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_file_that_changed_on_its_way_is_fetched_again(
    hub: Hub, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    def corrupt(request: Request) -> bool:
        if request.method == "GET" and request.path.endswith(f"/{file}"):
            hub.faults.remove(corrupt)
            repository = hub.models["org/tiny"]
            raw = bytearray(repository.revisions["main"][file])
            raw[len(raw) // 2] ^= 1
            etag = {"ETag": '"x"', "X-Repo-Commit": repository.commit("main") or ""}
            request.handler.send_response(200)
            for key, value in {**etag, "Content-Length": str(len(raw))}.items():
                request.handler.send_header(key, value)
            request.handler.end_headers()
            request.handler.wfile.write(raw)
            return True
        return False

    hub.faults.append(corrupt)
    found = resolve("org/tiny")
    assert (found.path / file).read_bytes() == hub.models["org/tiny"].revisions["main"][file]
    assert f"{file} of org/tiny is not what the hub published" in caplog.text


def test_a_copy_that_was_damaged_later_is_noticed(hub: Hub) -> None:
    found = resolve("org/tiny")
    blob = (found.path / "model.safetensors").resolve()
    times = blob.stat()
    raw = bytearray(blob.read_bytes())
    raw[-1] ^= 1
    blob.write_bytes(raw)
    import os

    os.utime(blob, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a copying tool does
    from layerscope.models import source

    source._FETCHED.clear()
    with pytest.raises(
        DownloadError,
        match=r"model\.safetensors of org/tiny is not the file that the hub published",
    ):
        resolve("org/tiny", offline=True)
    assert (
        resolve("org/tiny").weights_sha256() == resolve("org/tiny", offline=True).weights_sha256()
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("org/none", "the hub has no model 'org/none', or it is private"),
        ("org/private", "or it is private"),
        ("org/gated", "org/gated is gated: accept its terms"),
        ("org/tiny@step-9", "no revision 'step-9'"),
        ("org/pickled", r"holds pickled weights only \(pytorch_model.bin\).*allow_pickle=True"),
        ("org/quantized", "holds GGUF files"),
    ],
)
def test_what_cannot_be_had_says_why(hub: Hub, name: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        resolve(name)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (401, "does not accept the access token"), (403, "access is not granted"), (429, "slow down .HTTP 429"),
        (500, "a problem of its own .HTTP 500"), (503, "a problem of its own .HTTP 503"),
    ],
)  # fmt: skip
def test_refusals_are_told_apart(
    hub: Hub, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        time, "sleep", lambda seconds: None
    )  # the client's own patience with a busy hub
    hub.faults.append(lambda request: request.status(code, {"Retry-After": "1"}))
    with pytest.raises(LayerscopeError, match=said):
        resolve("org/tiny")
    with pytest.raises(LayerscopeError, match=said):
        load_corpus("org/texts")


@pytest.mark.parametrize("where", ["/api/", "/resolve/", "/cdn/"])
def test_a_hub_that_never_answers_is_given_up(
    hub: Hub, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.faults.append(lambda request: where in request.path and request.silent(30))
    real = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: real(min(seconds, 0.05)))
    monkeypatch.setattr("layerscope.data.hub._PATIENCE", 0.15)  # it is tried many times
    with pytest.raises(LayerscopeError, match=r"did not answer within|could not be fetched"):
        resolve("org/tiny")


def test_a_dataset_is_pinned_and_its_commit_noted(hub: Hub) -> None:
    first, second = load_corpus("org/texts"), load_corpus("org/texts@v2")
    assert first.texts == tuple(LINES)
    assert second.texts == tuple(LINES[::-1])
    assert first.source["commit"] == hub.datasets["org/texts"].commit("main")
    assert second.source["commit"] == hub.datasets["org/texts"].commit("v2")
    assert second.source["revision"] == "v2"
    asked = len(hub.log)
    again = load_corpus("org/texts@v2", offline=True)
    assert again.source["commit"] == second.source["commit"]
    # the library would give the version that was prepared last
    with pytest.raises(
        OfflineError,
        match=f"prepared on this machine at commit {second.source['commit'][:12]}, which is not",
    ):
        load_corpus("org/texts", offline=True)
    assert len(hub.log) == asked


def test_offline_asks_nobody(hub: Hub) -> None:
    with pytest.raises(OfflineError):
        load("org/tiny", offline=True)
    with pytest.raises(OfflineError):
        load_corpus("org/texts", offline=True)
    assert hub.log == []


def test_a_sweep_without_the_network(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(LINES))
    plan = {
        "models": ["org/tiny"], "corpora": [str(tmp_path / "texts.txt")],
        "profile": {"metrics": ["prompt_entropy"], "max_length": 16},
        "evaluate": {"tasks": "STS13", "sample": 5},
    }  # fmt: skip
    done = sweep(plan, out=tmp_path / "out", offline=True)
    assert [one["job"] for one in done.failed] == ["org-tiny--texts", "org-tiny--tasks"]
    assert all("downloads are off" in one["reason"] for one in done.failed)
    assert hub.log == []


def test_a_token_is_never_told(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HF_TOKEN", hub.token)
    with caplog.at_level(logging.DEBUG):
        run = profile("org/private", LINES, metrics=["prompt_entropy"], out=tmp_path / "run")
        with pytest.raises(LayerscopeError) as caught:
            resolve("org/none")
    assert hub.token not in caplog.text + str(caught.value) + json.dumps(run.manifest)
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or hub.token.encode() not in path.read_bytes()


def test_a_packed_file_of_a_dataset_that_is_cut_is_told(hub: Hub) -> None:
    whole = gzip.compress(b'{"text": "words"}\n' * 1000)
    hub.datasets["org/cut"] = Repository({"main": {"train.jsonl.gz": whole[: len(whole) // 2]}})
    with pytest.raises(LayerscopeError, match="ended before the end-of-stream"):
        load_corpus("org/cut")


def test_the_modules_of_a_sentence_encoder_are_fetched_and_other_formats_are_not(
    hub: Hub, files: dict[str, bytes]
) -> None:
    modules = {
        "modules.json": b"[]",
        "1_Pooling/config.json": b"{}",
        "2_Dense/model.safetensors": b"head",
    }
    hub.models["org/encoder"] = Repository(
        {"main": {**files, **modules, "onnx/config.json": b"{}", "8bit/config.json": b"{}"}}
    )
    folder = resolve("org/encoder").path
    assert {path.parent.name for path in folder.glob("*/*")} == {"1_Pooling", "2_Dense"}
