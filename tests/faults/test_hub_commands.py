"""Every command against the hub on this machine: one commit per run, transfers that fail, and what
a person reads then."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import layerscope
from layerscope import evaluate, load, probe, profile, study, sweep
from layerscope.data import load_corpus
from layerscope.errors import DownloadError, LayerscopeError
from layerscope.evaluation.tasks.info import task_info
from layerscope.models import source
from layerscope.models.source import resolve
from layerscope_paper.studies.shared import models as study_models
from tests.cli.support import Cli, assert_refused, run_main
from tests.evaluation.support import write_tasks
from tests.faults.conftest import LINES, parquet
from tests.faults.hub import Hub, Repository, Request

ASKED = "GET /api/models/org/tiny/revision/main"
TEXTS = [f"{line}, for the {i} th time" for i in range(3) for line in LINES]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    monkeypatch.chdir(tmp_path)
    return lambda *words: run_main(monkeypatch, capsys, *words)


@pytest.fixture
def moving(hub: Hub, other_files: dict[str, bytes]) -> Hub:
    """A hub whose branch moves as soon as it was asked for once."""

    first = hub.models["org/tiny"].revisions["main"]

    def move(request: Request) -> bool:
        if ASKED in hub.log and hub.log[-1] != ASKED:
            hub.models["org/tiny"].revisions = {"main": other_files, "before": first}
        return False

    hub.faults.append(move)
    return hub


def _probed(folder: Path) -> Any:
    file = folder / "labels.csv"
    file.write_text(
        "text,label\n" + "".join(f"{'ab'[i % 2] * 3} item {i},{'ab'[i % 2]}\n" for i in range(30))
    )
    settings: dict[str, Any] = {
        "epochs": 1,
        "trial": 1,
        "learning_rates": (1e-2,),
        "heads": ["mean"],
    }
    return probe("org/tiny", file, out=folder / "run", progress=False, **settings).manifest["model"]


def _evaluated(folder: Path) -> Any:
    data = write_tasks(folder / "tasks", pairs=8, texts=8)
    given: dict[str, Any] = {
        "data_dir": data,
        "layers": [1],
        "scoring_workers": 0,
        "store": folder / "store",
        "progress": False,
    }
    return evaluate("org/tiny", ["Pairs"], out=folder / "run", **given).manifest["model"]


def _improved(folder: Path) -> Any:
    settings: dict[str, Any] = {
        "judge": "none",
        "templates": ["one-word"],
        "max_length": 64,
        "progress": False,
    }
    return layerscope.improve("org/tiny", TEXTS, store=folder / "store", **settings).manifest[
        "model"
    ]


def _swept(folder: Path) -> Any:
    (folder / "texts.txt").write_text("\n".join(LINES))
    settings = {"metrics": ["prompt_entropy"], "max_length": 16}
    twice = [
        {
            "profile": settings,
            "models": ["org/tiny"],
            "name": name,
            "data": str(folder / "texts.txt"),
        }
        for name in "ab"
    ]
    done = sweep({"steps": twice}, out=folder / "out", progress=False)
    assert not done.failed
    revisions = [
        json.loads((folder / "out" / name / "manifest.json").read_text())["model"]
        for name in ("a", "b")
    ]
    assert (
        revisions[0]["revision"]
        == revisions[1]["revision"]
        == done.manifest["commits"]["models/org/tiny@main"]
    )
    return revisions[0]


def _studied(folder: Path) -> Any:
    run = study(
        "compare",
        "org/tiny",
        "org/tiny?bidirectional=true",
        data=LINES,
        out=folder / "run",
        max_length=16,
        progress=False,
    )
    assert list(run.manifest["commits"]) == ["models/org/tiny@main"]
    return {"name": "org/tiny", "revision": run.manifest["commits"]["models/org/tiny@main"]}


COMMANDS: dict[str, Callable[[Path], Any]] = {
    "profile": lambda folder: profile("org/tiny", LINES, metrics=["prompt_entropy"], max_length=16).manifest["model"],
    "evaluate": _evaluated, "probe": _probed, "improve": _improved, "sweep": _swept, "study": _studied,
}  # fmt: skip


@pytest.mark.usefixtures("no_figure_files")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_branch_that_moves_is_read_at_one_commit(moving: Hub, name: str, tmp_path: Path) -> None:
    before = moving.models["org/tiny"].commit("main")
    found = COMMANDS[name](tmp_path)
    assert moving.log.count(ASKED) == 1
    assert found["revision"] == before
    assert found["name"] == "org/tiny"


@pytest.mark.usefixtures("no_figure_files")
def test_a_resumed_study_stays_at_its_commits(
    hub: Hub, other_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: dict[str, Any] = {
        "steps": ["step0", "step1000"],
        "metrics": ["prompt_entropy"],
        "max_length": 16,
        "progress": False,
    }
    own, done = study_models.profile, []

    def stopped(*args: Any, **kwargs: Any) -> Any:
        if done:
            raise KeyboardInterrupt
        done.append(1)
        return own(*args, **kwargs)

    monkeypatch.setattr(study_models, "profile", stopped)
    with pytest.raises(KeyboardInterrupt):
        study("checkpoints", "org/steps", data=LINES, out=tmp_path / "run", **steps)
    noted = json.loads((tmp_path / "run" / "manifest.json").read_text())["commits"]
    monkeypatch.setattr(study_models, "profile", own)
    moved = {**other_files, "README.md": b"moved"}
    hub.models["org/steps"].revisions.update(
        {"step0": moved, "step1000": moved, "old": other_files}
    )
    run = study("checkpoints", "org/steps", data=LINES, out=tmp_path / "run", **steps)
    assert run.manifest["commits"] == noted
    read = {
        label: model["revision"] for label, model in run.manifest["conventions"]["models"].items()
    }
    assert read == {
        "step0": noted["models/org/steps@step0"],
        "step1000": noted["models/org/steps@step1000"],
    }
    assert len(set(read.values())) == 2


def test_a_dataset_that_moves_is_read_at_one_commit(hub: Hub, tmp_path: Path) -> None:
    repository = hub.datasets["org/texts"]
    content = parquet(text=TEXTS)
    repository.revisions = {"main": {"data/train-00000-of-00001.parquet": content}}
    before = repository.commit("main")
    settings: dict[str, Any] = {
        "judge": "none",
        "templates": ["one-word"],
        "max_length": 64,
        "progress": False,
    }
    improved = layerscope.improve("org/tiny", "org/texts", store=tmp_path / "store", **settings)
    assert improved.manifest["texts"]["source"]["commit"] == before
    run = study("sublayers", "org/tiny", data="org/texts", limit=4, max_length=16, progress=False)
    assert run.manifest["corpus"]["commit"] == before
    exported = layerscope.profile(
        "org/tiny", "org/texts", metrics=["prompt_entropy"], limit=4, max_length=16
    )
    assert exported.manifest["corpus"]["commit"] == before


def test_an_adapter_from_the_hub(
    hub: Hub, adapter_files: dict[str, bytes], files: dict[str, bytes]
) -> None:
    hub.models["org/lora"] = Repository({"main": adapter_files})
    commit = hub.models["org/lora"].commit("main")
    model = load("org/tiny", adapters=["org/lora"])
    assert model.identity["adapters"][0] | {"sha256": ""} == {
        "name": "org/lora",
        "revision": commit,
        "sha256": "",
    }
    asked = len(hub.log)
    again = load("org/tiny", adapters=[f"org/lora@{commit}"], offline=True)
    assert again.identity["adapters"] == model.identity["adapters"]
    assert len(hub.log) == asked
    with pytest.raises(
        LayerscopeError, match=r"org/tiny is not an adapter|holds no adapter_config"
    ):
        load("org/tiny", adapters=["org/tiny"])
    with pytest.raises(LayerscopeError, match="holds an adapter, not a model"):
        load("org/lora")


@pytest.fixture
def task(hub: Hub) -> str:
    """A task of mteb whose data the hub has."""
    place = task_info("STS13")
    dataset = layerscope.evaluation.tasks.info.text_tasks()["STS13"].metadata.dataset
    rows = {
        "sentence1": LINES,
        "sentence2": LINES[::-1],
        "score": [float(i % 6) for i in range(len(LINES))],
    }
    content = {"data/test-00000-of-00001.parquet": parquet(**rows)}
    hub.datasets[dataset["path"]] = Repository({dataset["revision"]: content, "main": content})
    return place.name


def test_a_task_of_mteb(hub: Hub, task: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "layers": [1],
        "scoring_workers": 0,
        "store": tmp_path / "store",
        "progress": False,
    }
    run = evaluate("org/tiny", [task], out=tmp_path / "run", **given)
    facts = run.manifest["tasks"][task]
    assert facts["items"] == len(LINES)
    assert (
        facts["exact"] is False
    )  # our rows are not MTEB's, whatever revision they were served under
    assert run.scores["score"].notna().all()
    asked = len(hub.log)
    again = evaluate("org/tiny", [task], out=tmp_path / "again", offline=True, **given)
    assert again.scores["score"].tolist() == run.scores["score"].tolist()
    assert len(hub.log) == asked


@pytest.mark.parametrize("file", ["test-00000-of-00001.parquet", "train-00000-of-00001.parquet"])
def test_data_that_changed_on_their_way_are_fetched_again(
    hub: Hub, task: str, file: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def corrupt(request: Request) -> bool:
        if (
            request.method == "GET"
            and request.path.startswith("/cdn/")
            and request.path.endswith(file)
        ):
            hub.faults.remove(corrupt)
            return request.travels("corrupt")
        return False

    hub.faults.append(corrupt)
    if file.startswith("train"):
        assert load_corpus("org/texts").texts == tuple(LINES)
    else:
        layerscope.evaluation.tasks.resolve_tasks([task])[0].load()
    assert corrupt not in hub.faults
    assert f"{file} of" in caplog.text
    assert "is not what the hub published" in caplog.text


@pytest.mark.parametrize("how", ["slow", "cut", "reset"])
@pytest.mark.parametrize(
    "what", ["model.safetensors", "tokenizer.json", "train-00000-of-00001.parquet"]
)
def test_transfers_that_break_off_go_on(
    hub: Hub, how: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(
        "huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 256
    )  # what is asked for again is told in such pieces
    left = [3 if how == "slow" else 2]

    def disturb(request: Request) -> bool:
        if request.method == "GET" and request.path.endswith(what) and left[0]:
            left[0] -= request.path.startswith("/cdn/") or what == "tokenizer.json"
            return request.travels(how)
        return False

    hub.faults.append(disturb)
    if what.endswith(".parquet"):
        assert load_corpus("org/texts").texts == tuple(LINES)
    else:
        assert (resolve("org/tiny").path / what).read_bytes() == hub.models["org/tiny"].revisions[
            "main"
        ][what]
    if how == "cut":
        assert any(path.endswith(what) for path in hub.ranges)  # only the rest was asked for


def test_a_transfer_that_always_breaks_off_is_told(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    hub.faults.append(lambda request: request.path.startswith("/cdn/") and request.travels("reset"))
    with pytest.raises(
        DownloadError,
        match=r"org/tiny could not be fetched: the connection broke off\. What has arrived is kept",
    ):
        resolve("org/tiny")


HOURS = [
    {"Retry-After": "7200"},
    {"ratelimit": '"api";r=0;t=7200'},
    {"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"},
]


@pytest.mark.parametrize("headers", HOURS)
@pytest.mark.parametrize("what", ["model", "dataset", "task"])
def test_a_hub_that_asks_to_wait_for_hours_is_not_waited_for(
    hub: Hub, task: str, headers: dict[str, str], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"it waits {seconds} seconds"))
    hub.faults.append(lambda request: request.status(429, headers))
    with pytest.raises(
        DownloadError,
        match=r"could not be (fetched|loaded): the hub asks to wait [\d.]+ (h|days) .HTTP 429",
    ) as caught:
        {
            "model": lambda: resolve("org/tiny"),
            "dataset": lambda: load_corpus("org/texts"),
            "task": lambda: layerscope.evaluation.tasks.resolve_tasks([task])[0].load(),
        }[what]()
    assert "hf auth login" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_short_wait_is_waited_for(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    left = [2]

    def busy(request: Request) -> bool:
        left[0] -= 1
        return left[0] >= 0 and request.status(429, {"Retry-After": "30"})

    hub.faults.append(busy)
    with caplog.at_level("INFO", "layerscope"):
        assert resolve("org/tiny").revision == hub.models["org/tiny"].commit("main")
    assert any(30 <= seconds < 40 for seconds in waited)
    assert "the hub is busy (HTTP 429): waiting 30 s" in caplog.text


def test_fetch_and_then_offline(hub: Hub, task: str, cli: Cli, tmp_path: Path) -> None:
    ended = cli("fetch", "org/tiny", "--tasks", task)
    assert ended.code == 0, ended.err
    assert ended.out.startswith("org/tiny: ")
    assert f"{task}: {len(LINES)} items" in ended.out
    asked = len(hub.log)
    (tmp_path / "texts.txt").write_text("\n".join(LINES))
    given = (
        "--data",
        "texts.txt",
        "--metrics",
        "prompt_entropy",
        "--max-length",
        "16",
        "--offline",
        "--quiet",
    )
    ended = cli("profile", "org/tiny", *given)
    assert (ended.code, ended.err) == (0, "")
    ended = cli(
        "profile", "org/tiny@step-2", *given[:-2], "--quiet"
    )  # with requests, and no line about them
    assert (ended.code, ended.err) == (0, "")
    asked = len(hub.log)
    assert_refused(
        cli("profile", "org/steps", *given),
        "org/steps is not in the local hub cache, and downloads are off",
    )
    assert len(hub.log) == asked


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fetch", "org/none"), "the hub has no model 'org/none', or it is private. Check the spelling, or log in."),
        (("fetch", "org/gated"), "org/gated is gated: accept its terms on the hub and log in (`hf auth login`)"),
        (("profile", "org/tiny", "--revision", "v9"), "the hub has org/tiny, but no revision 'v9'"),
        (("profile", "org/tiny", "--data", "org/none"), "the hub has no dataset 'org/none', or it is private"),
        (("profile", "org/tiny", "--data", "org/private-texts"), "the hub has no dataset 'org/private-texts', or it is private"),
        (("profile", "org/tiny", "--data", "org/gated-texts"), "hub dataset org/gated-texts/train is gated: accept its terms"),
        (("profile", "org/tiny", "--data", "org/texts@v9"), "the hub has the dataset org/texts, but no revision 'v9'"),
        (("profile", "org/tiny", "--data", "org/texts/dev"), "org/texts/dev cannot be used: Unknown split"),
        (("improve", "org/none", "--data", "texts.txt", "--out", "better"), "the hub has no model 'org/none'"),
        (("improve", "org/tiny", "--data", "texts.txt", "--out", "b", "--judge", "org/none"), "the hub has no model 'org/none'"),
        (("study", "checkpoints", "org/steps", "--set", "steps=step0,step9"), "the hub has org/steps, but no revision 'step9'"),
    ],
)  # fmt: skip
def test_what_a_person_reads(
    hub: Hub, words: tuple[str, ...], said: str, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    if words[0] in ("profile", "study"):
        words = (*words, "--quiet")
    if words[0] == "study":
        words = (*words, "--data", "texts.txt", "--max-length", "16")
    assert_refused(cli(*words), said)


def test_a_token_is_not_given_to_others(
    hub: Hub, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]
) -> None:
    monkeypatch.setenv("HF_TOKEN", hub.token)
    (tmp_path / "texts.txt").write_text("\n".join(LINES))
    ended = cli(
        "profile",
        "org/private",
        "--data",
        "texts.txt",
        "--metrics",
        "prompt_entropy",
        "--max-length",
        "16",
    )
    assert ended.code == 0, ended.err
    assert any("/resolve/" in path for path in hub.trusted)
    assert not any(path.startswith("/cdn/") for path in hub.trusted)  # another host
    told = ended.out + ended.err
    monkeypatch.setenv("HF_TOKEN", "hf_" + "wrong" * 7)
    hub.models["org/other"] = Repository({"main": files}, private=True)
    ended = cli("fetch", "org/other")
    assert ended.code == 1
    told += ended.out + ended.err
    report = cli("doctor")
    told += report.out + report.err
    for token in (hub.token, "hf_wrong"):
        assert token not in told
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or hub.token.encode() not in path.read_bytes()


def test_sweep_workers_are_told_the_commit(hub: Hub, other_files: dict[str, bytes]) -> None:
    from layerscope.data.hub import pinned

    before = hub.models["org/tiny"].commit("main")
    with pinned() as pins:
        source.pin_branches(
            [("org/tiny", None), ("org/none", None), ("minilm-l6", None), ("org/steps", "step0")]
        )
    assert pins.commits == {
        "models/org/tiny@main": before, "models/org/steps@step0": hub.models["org/steps"].commit("step0")
    }  # fmt: skip
    hub.models["org/tiny"].revisions = {
        "main": other_files,
        "old": hub.models["org/tiny"].revisions["main"],
    }
    with pinned(pins.commits):
        assert resolve("org/tiny").revision == before
    assert resolve("org/tiny").revision != before
