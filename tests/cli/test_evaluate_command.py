"""`layerscope evaluate` and `store` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from layerscope import command
from tests.cli.support import Cli, assert_refused
from tests.evaluation.support import write_tasks


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    return write_tasks(tmp_path / "tasks")


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "open_model", lambda *_: pytest.fail("the model was loaded"))


def test_json_and_the_same_again(cli: Cli, model_folder: Path, tasks: Path, tmp_path: Path) -> None:
    words = [
        "evaluate",
        model_folder,
        "-t",
        "Pairs,Ranking",
        "--data-dir",
        tasks,
        "--layers",
        "0,-1",
        "--option",
        "scoring_workers=0",
        "-o",
        "run",
    ]
    told = cli(*words, "--json")
    assert told.code == 0, told.err
    found = json.loads(told.out)
    assert found.keys() == {"model", "tasks", "undefined", "failed", "warnings", "run"}
    assert [task["task"] for task in found["tasks"]] == ["Pairs", "Ranking"]
    row = {
        "task",
        "split",
        "subset",
        "best",
        "layer",
        "readout",
        "last",
        "gain",
        "tied",
        "default_last",
        "gain_over_default",
    }
    assert all(task.keys() == row for task in found["tasks"])
    assert (found["undefined"], found["failed"], found["run"]) == ([], [], "run")
    scores = pd.read_parquet(tmp_path / "run" / "scores.parquet")
    assert set(scores["layer"]) == {0, 3}
    assert cli(*words, "--json").out == told.out
    shown = cli(*words)
    assert shown.code == 0
    assert "Pairs" in shown.out
    assert "Written to run: scores.csv" in shown.err
    assert_refused(cli(*words, "--sample", 10), "holds another run", "overwrite")


def test_readouts_and_the_default_folder(
    cli: Cli, model_folder: Path, tasks: Path, tmp_path: Path
) -> None:
    told = cli(
        "evaluate", model_folder, "--tasks", "Pairs", "--data-dir", tasks, "--layers", "-1", "--option", "scoring_workers=0",
        "--sample", "12", "--readouts", "one-word/last/raw,echo", "--max-length", "110",
    )  # fmt: skip
    assert told.code == 0, told
    folder = tmp_path / "runs" / "tiny-llama--Pairs--n12"
    scores = pd.read_csv(folder / "scores.csv", keep_default_na=False)
    assert scores["template"].tolist() == ["echo", "one-word"]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["conventions"]["max_length"] == 110
    assert manifest["tasks"]["Pairs"]["items"] == 12


def test_a_failed_task_is_code_2(cli: Cli, model_folder: Path, tasks: Path, tmp_path: Path) -> None:
    with (tasks / "Ranking" / "test.jsonl").open("a") as lines:
        lines.write("{oops")
    words = [
        "evaluate",
        model_folder,
        "-t",
        "Ranking,Pairs",
        "--data-dir",
        tasks,
        "--layers",
        "-1",
        "--option",
        "scoring_workers=0",
        "-o",
        "run",
    ]
    told = cli(*words)
    assert told.code == 2
    assert "failed" in told.out
    assert "Ranking" in told.out
    assert pd.read_parquet(tmp_path / "run" / "scores.parquet")["task"].tolist() == ["Pairs"]
    told = cli(*words, "--json")
    assert told.code == 2
    assert json.loads(told.out)["failed"][0]["task"] == "Ranking"


def test_mistakes(cli: Cli, model_folder: Path, tasks: Path, tmp_path: Path) -> None:
    words = ["evaluate", model_folder, "-t", "Pairs", "--data-dir", tasks, "-o", "run"]
    assert_refused(cli(*words, "--layers", "0,9"), "layer 9 does not exist", "layers 0 to 3")
    assert_refused(cli(*words, "--layers", "last"), "--layers takes whole numbers", "'last'")
    assert_refused(cli(*words, "--readouts", "plain/maen"), "unknown pooling 'maen'", "'mean'")
    assert_refused(cli(*words, "--readouts", "plain/cls"), "no CLS token", "mean, wmean, last, max")
    assert_refused(cli(*words, "--readouts", "one-word/mean"), "'one-word' supports pooling last")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("no_model")
def test_mistakes_that_need_no_model(cli: Cli, model_folder: Path, tasks: Path) -> None:
    words = ["evaluate", model_folder, "--data-dir", tasks]
    assert_refused(cli(*words, "-t", "Pears"), "unknown task 'Pears'", "Did you mean 'Pairs'")
    assert_refused(cli(*words, "-t", "STSBenchmrk"), "Did you mean 'STSBenchmark'")
    assert_refused(cli(*words, "-t", "Pairs", "--sample", "1"), "sample is 1", "4 or more")
    assert_refused(
        cli("evaluate", model_folder, "--data-dir", "nowhere", "-t", "Pairs"),
        "nowhere",
        "does not exist",
    )


def test_offline_names_what_is_missing(
    cli: Cli, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "none"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    told = cli("evaluate", model_folder, "-t", "STS12,STS13,SmsSpam")
    assert told.code == 1
    assert told.out == ""
    assert "no task could be read" in told.err
    for name in ("STS12", "STS13", "SmsSpam"):
        assert f"\n  {name}: " in told.err
    assert "layerscope-zoo fetch SmsSpam" in told.err
    assert "Traceback" not in told.err


def test_stored_vectors_are_pruned(
    cli: Cli, model_folder: Path, tasks: Path, tmp_path: Path
) -> None:
    empty = cli("doctor", "--prune", "2GB")
    assert (empty.code, empty.out) == (0, "removed 0 bytes of vectors; 0 bytes are left\n")
    told = cli(
        "evaluate", model_folder, "-t", "Pairs", "--data-dir", tasks, "--layers", "-1", "--readouts", "plain,echo/mean",
        "--option", "scoring_workers=0",
    )  # fmt: skip
    assert told.code == 0
    assert cli("doctor", "--prune", "2GB").out.startswith("removed 0 bytes")
    assert len(list((tmp_path / "cache" / "embeddings").glob("??/*"))) == 2
    told = cli("doctor", "--prune", "0MB")
    assert told.out.endswith("0 bytes are left\n")
    assert list((tmp_path / "cache" / "embeddings").glob("??/*")) == []
    assert_refused(cli("doctor", "--prune", "all"), "a size is a number", "'all'")
    assert cli("doctor", "--prune", "9" * 400).code == 0
