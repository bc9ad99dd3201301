"""Models and datasets of a hub on this machine: one commit, recorded; no code; one clear line where
something cannot be had."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import layerscope
from layerscope import evaluate, load, profile
from layerscope.data import load_corpus
from layerscope.errors import LayerscopeError, ModelError, OfflineError
from layerscope.evaluation.tasks.mteb_tasks import text_tasks
from layerscope.models.source import resolve
from layerscope_paper.sweeps.run import sweep
from tests.cli.support import Cli, assert_refused, run_main
from tests.faults.conftest import LINES, parquet
from tests.faults.hub import Hub, Repository, Request
from tests.shared import offline

ASKED = "GET /api/models/org/tiny/revision/main"
SHORT: dict[str, Any] = {"metrics": ["prompt_entropy"], "max_length": 16}
TEXTS = [f"{line}, for the {i} th time" for i in range(3) for line in LINES]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    monkeypatch.chdir(tmp_path)
    return lambda *words: run_main(monkeypatch, capsys, *words)


def test_a_model_and_its_revisions(
    hub: Hub, files: dict[str, bytes], other_files: dict[str, bytes]
) -> None:
    main, step = resolve("org/tiny"), resolve("org/tiny@step-2")
    assert (main.path / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert (step.path / "model.safetensors").read_bytes() == other_files["model.safetensors"]
    assert main.revision == hub.models["org/tiny"].commit("main")
    asked = len(hub.log)
    with offline():
        assert resolve("org/tiny").path == main.path
    assert len(hub.log) == asked


@pytest.mark.parametrize("command", ["profile", "improve"])
def test_a_branch_that_moves_is_read_at_one_commit(
    hub: Hub, other_files: dict[str, bytes], tmp_path: Path, command: str
) -> None:
    """The manifest names the commit of the weights that were read."""
    repository = hub.models["org/tiny"]
    first = repository.revisions["main"]

    def move(request: Request) -> bool:
        if ASKED in hub.log and hub.log[-1] != ASKED:
            repository.revisions = {"main": other_files, "before": first}
        return False

    hub.faults.append(move)
    if command == "profile":
        run: Any = profile("org/tiny", LINES, out=tmp_path / "run", **SHORT)
    else:
        settings: dict[str, Any] = {"judge": "none", "templates": ["one-word"], "max_length": 64}
        store = tmp_path / "store"
        run = layerscope.improve("org/tiny", TEXTS, store=store, progress=False, **settings)
    weights = {
        repository.commit(name): hashlib.sha256(files["model.safetensors"]).hexdigest()
        for name, files in repository.revisions.items()
    }
    model = run.manifest["model"]
    assert model["name"] == "org/tiny"
    assert model["weights_sha256"] == weights[model["revision"]]


def test_a_dataset_is_pinned_and_its_commit_noted(hub: Hub) -> None:
    first, second = load_corpus("org/texts"), load_corpus("org/texts@v2")
    assert first.texts == tuple(LINES)
    assert second.texts == tuple(LINES[::-1])
    assert first.source["commit"] == hub.datasets["org/texts"].commit("main")
    assert second.source["commit"] == hub.datasets["org/texts"].commit("v2")
    assert second.source["revision"] == "v2"
    asked = len(hub.log)
    with offline():
        again = load_corpus("org/texts@v2")
    assert again.source["commit"] == second.source["commit"]
    # the library would give the version that was prepared last
    wrong = f"prepared on this machine at commit {second.source['commit'][:12]}, which is not"
    with offline(), pytest.raises(OfflineError, match=wrong):
        load_corpus("org/texts")
    assert len(hub.log) == asked


def test_code_of_a_dataset_is_not_run(hub: Hub, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    script = f"open({str(mark)!r}, 'w').close()".encode()
    hub.datasets["org/script"] = Repository({"main": {"script.py": script}})
    with pytest.raises(LayerscopeError) as caught:
        load_corpus("org/script")
    assert len(str(caught.value).splitlines()) == 1
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("org/none", "the hub has no model 'org/none', or it is private"),
        ("org/private", "or it is private"),
        ("org/gated", "org/gated is gated: accept its terms"),
        ("org/tiny@step-9", "no revision 'step-9'"),
        ("org/pickled", "holds no weights.*allow_pickle=True"),
        ("org/quantized", "a .gguf file"),
    ],
)
def test_what_cannot_be_had_says_why(hub: Hub, name: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        resolve(name)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("org/tiny", "--data", "org/none"), "the hub has no dataset 'org/none', or it is private"),
        (("org/tiny", "--data", "org/gated-texts"), "org/gated-texts/train is gated: accept its"),
        (("org/tiny", "--data", "org/texts@v9"), "the hub has org/texts, but no revision 'v9'"),
        (("org/tiny", "--data", "org/texts/dev"), "org/texts/dev cannot be used: Unknown split"),
        (("org/none", "--data", "texts.txt"), "the hub has no model 'org/none'"),
    ],
)
def test_what_a_person_reads(
    hub: Hub, words: tuple[str, ...], said: str, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    assert_refused(cli("profile", *words), said)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (401, "does not accept the access token"),
        (403, "access is not granted"),
        (429, "slow down .HTTP 429"),
        (500, "a problem of its own .HTTP 500"),
    ],
)
def test_refusals_are_told_apart(
    hub: Hub, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # the client's own patience
    hub.faults.append(lambda request: request.status(code, {"Retry-After": "1"}))
    with pytest.raises(LayerscopeError, match=said):
        resolve("org/tiny")
    with pytest.raises(LayerscopeError, match=said):
        load_corpus("org/texts")


def test_offline_asks_nobody(hub: Hub) -> None:
    with offline(), pytest.raises(OfflineError):
        load("org/tiny")
    with offline(), pytest.raises(OfflineError):
        load_corpus("org/texts")
    assert hub.log == []


def test_online_and_then_offline(hub: Hub, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(LINES))
    words = ("--data", "texts.txt", "--metrics", "prompt_entropy", "--max-length", "16")
    for downloads in (nullcontext(), offline()):
        with downloads:
            ended = cli("profile", "org/tiny", *words)
        assert (ended.code, ended.err) == (0, "")
    asked = len(hub.log)
    said = "org/steps is not in the local hub cache, and downloads are off"
    with offline():
        assert_refused(cli("profile", "org/steps", *words), said)
    assert len(hub.log) == asked


def test_a_sweep_without_the_network(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(LINES))
    plan = {
        "models": ["org/tiny"],
        "corpora": [str(tmp_path / "texts.txt")],
        "profile": SHORT,
        "evaluate": {"tasks": "STS13", "sample": 5},
    }
    with offline():
        done = sweep(plan, out=tmp_path / "out")
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


def test_a_token_is_not_given_to_others(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", hub.token)
    resolve("org/private")
    assert any("/resolve/" in path for path in hub.trusted)
    assert not any(path.startswith("/cdn/") for path in hub.trusted)  # another host


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


def test_an_adapter_from_the_hub(hub: Hub, adapter_files: dict[str, bytes]) -> None:
    hub.models["org/lora"] = Repository({"main": adapter_files})
    commit = hub.models["org/lora"].commit("main")
    model = load("org/tiny", adapters=["org/lora"])
    told = model.identity["adapters"][0] | {"sha256": ""}
    assert told == {"name": "org/lora", "revision": commit, "sha256": ""}
    asked = len(hub.log)
    with offline():
        again = load("org/tiny", adapters=[f"org/lora@{commit}"])
    assert again.identity["adapters"] == model.identity["adapters"]
    assert len(hub.log) == asked
    with pytest.raises(LayerscopeError, match="It is an adapter: load its base model"):
        load("org/lora")


def test_a_task_of_mteb(hub: Hub, tmp_path: Path) -> None:
    dataset = text_tasks()["STS13"].metadata.dataset
    scores = [float(i % 6) for i in range(len(LINES))]
    rows = parquet(sentence1=LINES, sentence2=LINES[::-1], score=scores)
    content = {"data/test-00000-of-00001.parquet": rows}
    hub.datasets[dataset["path"]] = Repository({dataset["revision"]: content, "main": content})
    given: dict[str, Any] = {"layers": [1], "scoring_workers": 0, "store": tmp_path / "store"}
    run = evaluate("org/tiny", ["STS13"], out=tmp_path / "run", progress=False, **given)
    facts = run.manifest["tasks"]["STS13"]
    assert facts["items"] == len(LINES)
    assert facts["exact"] is True, "at the commit that MTEB names"
    asked = len(hub.log)
    with offline():
        again = evaluate("org/tiny", ["STS13"], out=tmp_path / "again", progress=False, **given)
    assert again.scores["score"].tolist() == run.scores["score"].tolist()
    assert len(hub.log) == asked
