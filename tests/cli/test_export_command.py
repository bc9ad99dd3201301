"""`layerscope export` and `layerscope bench` as commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from layerscope.exporting import bench as benching
from layerscope.exporting import verifying
from tests.cli.support import Cli, assert_refused
from tests.exporting.conftest import reload_here

pytest.importorskip("sentence_transformers")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "reload", reload_here)


def test_export_prints_what_was_done(cli: Cli, model_folder: Path, tmp_path: Path) -> None:
    ended = cli(
        "export",
        model_folder,
        "--layer",
        2,
        "--readout",
        "plain/last/raw",
        "--max-length",
        64,
        "--out",
        tmp_path / "x",
    )
    assert ended.code == 0, ended
    for phrase in (
        "tiny-llama at layer 2 of 3",
        "2 of 3 blocks, plus one pass-through block",
        "verified in a fresh process",
        "hidden_states[2]",
    ):
        assert phrase in " ".join(ended.out.split())
    assert (tmp_path / "x" / "model.safetensors").exists()
    again = cli("export", model_folder, "--layer", 1, "--out", tmp_path / "x")
    assert_refused(again, "not empty", "--overwrite")


def test_json_is_pure(cli: Cli, model_folder: Path, data: Path, tmp_path: Path) -> None:
    words = (
        "--layer",
        "-1",
        "--readout",
        "plain/mean/raw/keep/corpus",
        "--center-on",
        data,
        "--max-length",
        64,
        "--normalize",
    )
    ended = cli("export", model_folder, *words, "--out", tmp_path / "x", "--json")
    assert ended.code == 0, ended
    told = json.loads(ended.out)
    assert (told["layer"], told["unit_length"]) == (3, True)
    assert told["centered_on"] == "the 10 texts of texts.txt"
    assert told["modules"] == ["Transformer", "Pooling", "Dense", "Normalize"]


@pytest.mark.parametrize(
    ("words", "phrases"),
    [
        (("--layer", "9"), ("layer 9 does not exist", "0 to 3")),
        (("--layer", "two"), ("--layer takes a whole number", "'two'")),
        (
            ("--layer", "1", "--readout", "echo"),
            ("cannot be exported without custom code", "--readout plain/mean/applied/keep/none"),
        ),
        (
            ("--layer", "1", "--readout", "plain/mean/raw/drop"),
            ("largest norm", "plain/mean/raw/keep/none"),
        ),
        ((), ("say which --layer (0 to 3)", "--choice")),
        (("--choice", "nowhere"), ("nowhere", "no run")),
    ],
)
def test_mistakes_are_one_line(
    cli: Cli, model_folder: Path, words: tuple[str, ...], phrases: tuple[str, ...]
) -> None:
    assert_refused(cli("export", model_folder, *words, "--out", "x"), *phrases)


def test_bench(cli: Cli, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def fake(folder: Path, against: str, **options: Any) -> benching.Bench:
        asked.append((folder, against, options))
        one = {
            "name": "a",
            "blocks": 1,
            "parameters": 2e6,
            "load_s": 0.1,
            "disk_bytes": 2**21,
            "peak_bytes": 2**22,
            "model_bytes": 2**21,
        }
        times = {"lengths": {"16": {"texts_per_s": 2.0, "p50_ms": 1.0, "p95_ms": 2.0}}}
        return benching.Bench([{**one, **times}, {**one, **times, "blocks": 4}], [16], 1, "here")

    monkeypatch.setattr(benching, "bench", fake)
    ended = cli("bench", model_folder, "--against", model_folder, "--lengths", "16")
    assert ended.code == 0, ended
    assert "texts/s at 16 tokens" in ended.out
    assert "4.00 ×" in ended.out
    assert asked[0][2]["lengths"] == [16]
    assert (
        json.loads(
            cli("bench", model_folder, "--against", model_folder, "--lengths", "16", "--json").out
        )["threads"]
        == 1
    )
    assert_refused(
        cli("bench", model_folder, "--against", model_folder, "--lengths", "many"),
        "--lengths takes whole numbers",
    )


def test_center_on_a_column(cli: Cli, model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text(
        "id,review,reply\n1,a good book,thank you\n2,a bad book,sorry\n"
    )
    words = ("--layer", 1, "--readout", "plain/mean/raw/keep/corpus", "--max-length", 64)
    ended = cli(
        "export",
        model_folder,
        *words,
        "--center-on",
        "reviews.csv",
        "--column",
        "review",
        "--out",
        "x",
        "--json",
    )
    assert ended.code == 0, ended
    assert json.loads(ended.out)["centered_on"] == "the 2 texts of reviews.csv"
    assert_refused(
        cli("export", model_folder, *words, "--column", "review", "--out", "y"), "--center-on"
    )


def test_bench_knows_the_base_of_an_export(tmp_path: Path, cli: Cli) -> None:
    folder = tmp_path / "cut"
    folder.mkdir()
    assert_refused(cli("bench", folder), "not an export", "--against")
    for base, name in (
        ({"name": "smollm2-135m", "source": "catalogue"}, "smollm2-135m"),
        ({"name": "org/model", "source": "hub", "revision": "abc"}, "org/model@abc"),
    ):
        (folder / "layerscope.json").write_text(json.dumps({"kind": "export", "base": base}))
        assert benching.base_of(folder) == name
    (folder / "layerscope.json").write_text(
        json.dumps({"base": {"name": "mine", "source": "folder"}})
    )
    assert_refused(cli("bench", folder), "cut from mine", "--against")
