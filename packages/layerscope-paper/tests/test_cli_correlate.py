"""`layerscope-paper correlate`: published models, or a profile and an evaluation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from paper_support import Cli, assert_refused
from tests.evaluation.support import write_tasks
from tests.tiny import tiny_model

from layerscope.data import Corpus
from layerscope.evaluation.job import evaluate
from layerscope.profiling import profile


@pytest.fixture(scope="module")
def folders(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A profile, an evaluation of the same model, and a profile of another."""
    root = tmp_path_factory.mktemp("correlate")
    data = write_tasks(root / "data")
    settings = {"metrics": ["prompt_entropy", "curvature"], "max_length": 24, "final_norm": "raw"}
    profile(tiny_model("gpt2", 0), Corpus.of(texts), out=root / "profile", **settings)
    profile(tiny_model("gpt2", 1), Corpus.of(texts), out=root / "other", **settings)
    evaluate(
        tiny_model("gpt2", 0),
        ["Pairs"],
        out=root / "scores",
        data_dir=data,
        scoring_workers=0,
        store=root / "store",
        max_length=32,
    )
    return root / "profile", root / "scores", root / "other"


def test_on_the_atlas(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ended = cli(
        "correlate",
        "--published",
        "bert-base",
        "--surrogates",
        "199",
        "--measure",
        "dcor,spearman",
        "-o",
        "c.png",
    )
    assert ended.code == 0, ended.err
    assert "distance correlation  one point per layer (13 layers" in ended.out
    rows = [
        line.split()
        for line in ended.out.splitlines()
        if line.strip().startswith("entropy_dataset")
    ]  # nothing is cut off
    assert [len(row) for row in rows] == [9, 9]
    assert all(re.fullmatch(r"0\.\d\d<0\.\d\d", row[4]) and row[-1].endswith("%") for row in rows)
    assert ended.out.count(" beyond ") == 2
    assert "undefined" in ended.out
    assert (tmp_path / "c.png").stat().st_size > 5_000


def test_json_is_pure_and_holds_the_chance_level(cli: Cli) -> None:
    words = ("--metric", "dime,lidar", "--measure", "dcor", "--surrogates", "199", "--json")
    found = json.loads(cli("correlate", "--published", "Pythia-410m", *words).out)
    assert {row["metric"] for row in found["layers"]} == {"dime", "lidar"}
    assert 0.2 < found["layers"][0]["null_mean"] < found["layers"][0]["null_95"] < 1
    assert (
        found["layers"][0]["null_95"] > 0.7
    )  # unrelated curves as smooth as these reach far more than shuffled layers do
    assert found["convention"] == "english"
    assert len(found["tasks"]) == 58


def test_runs_of_four_layers_are_refused_as_too_short(
    cli: Cli, folders: tuple[Path, Path, Path]
) -> None:
    run, scores, _ = folders
    ended = cli("correlate", scores, run, "--json")  # in either order
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert found["layers"] == []
    assert {u["reason"] for u in found["undefined"]} == {"4 points, at least 5 are needed"}
    assert "different vector" in found["notes"][0]


def test_runs_of_several_models_are_matched(
    cli: Cli, folders: tuple[Path, Path, Path], texts: list[str], tmp_path: Path
) -> None:
    run, scores, other = folders
    settings = {"metrics": ["prompt_entropy", "curvature"], "max_length": 24, "final_norm": "raw"}
    profile(tiny_model("llama"), Corpus.of(texts), out=tmp_path / "profile", **settings)
    places = {"data_dir": run.parent / "data", "scoring_workers": 0, "store": run.parent / "store"}
    evaluate(tiny_model("llama"), ["Pairs"], out=tmp_path / "scores", max_length=32, **places)
    ended = cli("correlate", run, tmp_path / "scores", scores, tmp_path / "profile", "--json")
    assert ended.code == 0, ended.err
    assert set(json.loads(ended.out)["families"]) == {"tiny-gpt2", "tiny-llama"}
    left = cli("correlate", run, tmp_path / "scores", scores, tmp_path / "profile", other)
    assert_refused(left, "no evaluation of tiny-gpt2 among the folders")


def test_mistakes_are_one_line(cli: Cli, folders: tuple[Path, Path, Path], tmp_path: Path) -> None:
    run, scores, other = folders
    assert_refused(cli("correlate"), "--published MODEL")
    assert_refused(
        cli("correlate", run),
        "give the folders of a profile and of an evaluation of the same model",
    )
    assert_refused(
        cli("correlate", run, other),
        "give the folders of a profile and of an evaluation of the same model",
    )
    assert_refused(cli("correlate", other, scores), "differ in weights_sha256")
    assert_refused(cli("correlate", tmp_path, scores), "no manifest.json")
    assert_refused(
        cli("correlate", "--published", "bert-base", "--metric", "entropy"),
        "unknown metric 'entropy'",
    )
    assert_refused(
        cli("correlate", "--published", "bert-base", "--measure", "pearson"), "unknown measure"
    )
    assert_refused(
        cli("correlate", run, scores, "--readout", "plain/last/raw/keep/none"), "unknown readout"
    )


def test_several_models_are_tested_over_their_families(cli: Cli) -> None:
    words = ("--metric", "dime", "--measure", "spearman", "--surrogates", "99")
    ended = cli("correlate", "--published", "Pythia-160m,bert-base,mamba-130m", *words)
    assert ended.code == 0, ended.err
    assert "3 models of 3 families" in ended.out
    found = json.loads(
        cli("correlate", "--published", "Pythia-160m,bert-base,mamba-130m", *words, "--json").out
    )
    (row,) = found["over_models"]
    assert (row["metric"], row["models"], row["families"]) == ("dime", 3, 3)
    assert found["families"] == {
        "Pythia-160m": "Pythia",
        "bert-base": "bert",
        "mamba-130m": "mamba",
    }
    assert_refused(cli("correlate", "--published", "bert-base,bert-base", *words), "more than once")


def test_an_evaluation_needs_its_profile(cli: Cli, folders: tuple[Path, Path, Path]) -> None:
    _, scores, other = folders
    for alone in (scores, other):
        assert_refused(cli("correlate", alone), "a profile and of an evaluation")
