"""`layerscope-paper published` and `reproduce`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from paper_support import Cli, assert_refused
from tests.tiny import tiny_model

from layerscope.data import Corpus
from layerscope.profiling import profile
from layerscope_paper.atlas.reproduce import correlations
from layerscope_paper.correlation import correlate
from layerscope_paper.presets import PRESETS


@pytest.fixture(scope="module")
def run(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("atlas") / "run"
    model = tiny_model("gpt_neox")
    model.identity["name"] = "[red]mine[/]"
    profile(
        model,
        Corpus.of(texts),
        out=folder,
        **PRESETS["released"],
        metrics=["prompt_entropy", "curvature"],
        max_length=24,
    )
    return folder


def test_models(cli: Cli) -> None:
    ended = cli("published")
    assert ended.code == 0
    assert "Pythia-410m@step1000" in ended.out
    rows = json.loads(cli("published", "--json").out)
    assert len(rows) == 43
    assert {row["model"]: row["layers"] for row in rows}["aimv2-large"] is None


def test_show(cli: Cli) -> None:
    ended = cli("published", "bert-base", "--convention", "authors")
    assert ended.code == 0
    assert "STSBenchmark" in ended.out
    assert "mean over 25 tasks" in ended.out
    found = json.loads(cli("published", "Llama3-8B", "--json").out)
    assert found["scores"] is None
    assert found["metrics"]["final_norm"] == "hf"


def test_compare_with_a_run_and_a_figure(cli: Cli, run: Path, tmp_path: Path) -> None:
    ended = cli("published", "Pythia-410m", "mamba-370m", "--run", run, "-o", "compare.svg")
    assert ended.code == 0, ended.err
    assert "compared: curvature, entropy_prompt" in ended.out
    assert "[red]mine[/]" in ended.out  # a name is text, not markup
    assert (tmp_path / "compare.svg").read_text(encoding="utf-8").startswith("<svg")
    found = json.loads(cli("published", "Pythia-410m", "mamba-370m", "--run", run, "--json").out)
    assert [row["model"] for row in found["models"]] == [
        "Pythia-410m",
        "mamba-370m",
        "your run: [red]mine[/]",
    ]
    assert found["runs"][0]["metrics"] == ["curvature", "entropy_prompt"]


def test_reproduce(cli: Cli, tmp_path: Path) -> None:
    rows = json.loads(cli("reproduce", "table2", "--json").out)
    assert len(rows) == 20
    assert set(rows[0]) >= {
        "item",
        "model",
        "column",
        "printed",
        "ours",
        "tasks",
        "convention",
        "verdict",
    }
    authors = [row for row in rows if row["convention"] == "authors"]
    assert len(authors) == 10
    assert all(abs(row["ours"] - row["printed"]) <= 0.05 for row in authors)
    ended = cli("reproduce", "fig12", "-o", "fig12.png")
    assert ended.code == 0
    assert "not supported" in ended.out
    assert (tmp_path / "fig12.png").stat().st_size > 10_000


def test_bars_are_drawn(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlations, "correlate", partial(correlate, surrogates=99, bootstrap=100))
    correlations.model_correlations.cache_clear()
    assert cli("reproduce", "fig9", "--convention", "english", "-o", "fig9.png").code == 0
    assert (tmp_path / "fig9.png").exists()
    correlations.model_correlations.cache_clear()


def test_mistakes_are_one_line(cli: Cli, tmp_path: Path) -> None:
    assert_refused(cli("published", "Pythia-420m"), "Did you mean 'Pythia-410m'?")
    assert_refused(cli("reproduce", "tabel2"), "Did you mean 'table2'?", "fig10")
    assert_refused(cli("reproduce", "table2", "--convention", "british"), "both")
    assert_refused(cli("published", "bert-base", "--run", tmp_path), "holds no run")
