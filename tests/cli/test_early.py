"""The commonest mistakes are told before torch and models are loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from layerscope.catalogue import MODEL_NAMES, ZOO_MODELS
from layerscope.cli.early import METRIC_NAMES, blocks_of
from layerscope.errors import near_misses
from layerscope.metrics import metrics
from layerscope.metrics.registry import is_plugin
from layerscope.models import catalogue
from tests.cli.support import Cli, assert_refused

TRIED = """
import contextlib, io, json, sys
from layerscope.cli import main
told = []
for words in json.load(sys.stdin):
    sys.argv = ["layerscope", *words]
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.suppress(SystemExit):
        main()
    told.append([err.getvalue(), sorted({"torch", "transformers", "pandas"} & set(sys.modules))])
json.dump(told, sys.stdout)
"""


def test_the_commonest_mistakes_load_nothing(tmp_path: Path) -> None:
    model, texts = tmp_path / "model", tmp_path / "texts.csv"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 3}))
    texts.write_text("text,label\none text,a\nanother,b\n")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    out = str(tmp_path / "out")
    mistakes = {
        "there is no file": ["improve", model, "--data", tmp_path / "text.csv", "--out", out],
        "Did you mean 'smollm2-135m'?": ["improve", "smollm-135m", "--data", texts, "--out", out],
        "layer 99 does not exist": ["export", model, "--layer", "99", "--out", out],
        "layer 98 does not exist": [
            "evaluate",
            model,
            "--tasks",
            "STSBenchmark",
            "--layers",
            "1,98",
            "--out",
            out,
        ],
        "no column 'txt'. Did you mean 'text'?": [
            "improve",
            model,
            "--data",
            texts,
            "--column",
            "txt",
            "--out",
            out,
        ],
        "no such folder": ["report", tmp_path / "nothing"],
        "exists and is not empty": ["improve", model, "--data", texts, "--out", mine],
        "Did you mean 'one-word'?": [
            "improve",
            model,
            "--data",
            texts,
            "--templates",
            "one-wrod",
            "--out",
            out,
        ],
        "unknown metric 'promt_entropy'. Did you mean 'prompt_entropy'?": [
            "profile",
            model,
            "--metrics",
            "promt_entropy",
        ],
        "Give pairs as .csv": [
            "improve",
            model,
            "--queries",
            texts,
            "--documents",
            texts,
            "--pairs",
            tmp_path / "no.csv",
            "--out",
            out,
        ],
        "Did you mean --data?": ["improve", model, "--dta", texts, "--out", out],
    }
    given = json.dumps([[str(word) for word in words] for words in mistakes.values()])
    done = subprocess.run(
        [sys.executable, "-c", TRIED], input=given, capture_output=True, text=True, check=True
    )
    for phrase, (said, loaded) in zip(mistakes, json.loads(done.stdout), strict=True):
        assert phrase in " ".join(said.replace("│", " ").split()), said
        assert loaded == []


def test_the_names_known_early_are_those_of_the_catalogue() -> None:
    assert {*MODEL_NAMES, *ZOO_MODELS} == set(catalogue())


def test_the_metrics_known_early_are_those_of_the_registry() -> None:
    assert set(METRIC_NAMES) == {
        name for name, metric in metrics().items() if not is_plugin(metric)
    }


def test_blocks_are_read_from_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 5}')
    assert blocks_of(str(tmp_path)) == 5
    (tmp_path / "config.json").write_text("[1")
    assert blocks_of(str(tmp_path)) is None
    assert blocks_of("org/name") is None


@pytest.mark.parametrize(
    ("given", "names", "meant"),
    [
        ("Foo", ["mFollowIR"], []),
        ("version", ["verify"], []),
        ("max_len", ["max_length", "model"], ["max_length"]),
        ("promt_entropy", ["prompt_entropy"], ["prompt_entropy"]),
        ("rank", ["effective_rank", "lidar"], ["effective_rank"]),
        ("x", ["y"], ["y"]),
    ],
)
def test_near_misses_are_real(given: str, names: list[str], meant: list[str]) -> None:
    assert near_misses(given, names) == meant


def test_a_command_that_is_none(cli: Cli) -> None:
    assert "Did you mean" not in cli("version").err
    assert "Did you mean 'report'?" in cli("reprot").err


def test_a_bare_parameter_is_told_as_a_flag(cli: Cli, data: Path, model_folder: Path) -> None:
    words = ("export", model_folder, "--layer", "1", "--max-length", "0", "--out", "out")
    assert_refused(cli(*words), "--max-length must be at least 1")
