"""`layerscope export` as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.support import Cli, assert_refused
from tests.exporting.conftest import here

__all__ = ["here"]
pytest.importorskip("sentence_transformers")
pytestmark = pytest.mark.usefixtures("here")

SHORT = ("--max-length", 64, "--out", "x")
CENTERED = ("--readout", "plain/mean/raw/keep/corpus")


def test_export_prints_what_was_done(cli: Cli, model_folder: Path, tmp_path: Path) -> None:
    ended = cli("export", model_folder, "--layer", 2, "--readout", "plain/last/raw", *SHORT)
    assert ended.code == 0, ended
    for phrase in (
        "tiny-llama at layer 2 of 3",
        "2 of 3 blocks, plus one pass-through block",
        "verified in a fresh process",
        "texts per second instead of",
    ):
        assert phrase in " ".join(ended.out.split())
    assert (tmp_path / "x" / "model.safetensors").exists()
    assert_refused(cli("export", model_folder, "--layer", 1, *SHORT), "not empty", "overwrite")


def test_json_is_pure(cli: Cli, model_folder: Path, data: Path) -> None:
    words = ("--layer", "-1", *CENTERED, "--center-on", data, "--option", "normalize=true")
    ended = cli("export", model_folder, *words, *SHORT, "--json")
    assert ended.code == 0, ended
    facts = json.loads(ended.out)
    assert (facts["layer"], facts["unit_length"]) == (3, True)
    assert facts["centered_on"] == "the 10 texts of texts.txt"


@pytest.mark.parametrize(
    ("words", "phrases"),
    [
        (("--layer", "9"), ("layer 9 does not exist", "0 to 3")),
        (
            ("--layer", "1", "--readout", "echo"),
            ("cannot be exported without custom code", "readout='plain/mean/applied/keep/none"),
        ),
        (
            ("--layer", "1", "--readout", "plain/mean/raw/drop"),
            ("largest norm", "plain/mean/raw/keep/none"),
        ),
        ((), ("say which layer=", "choice=")),
        (("--choice", "nowhere"), ("nowhere", "no run")),
    ],
)
def test_mistakes_are_one_line(
    cli: Cli, model_folder: Path, words: tuple[str, ...], phrases: tuple[str, ...]
) -> None:
    assert_refused(cli("export", model_folder, *words, "--out", "x"), *phrases)


def test_center_on_a_column(cli: Cli, model_folder: Path, tmp_path: Path) -> None:
    rows = "id,review,reply\n1,a good book,thank you\n2,a bad book,sorry\n"
    (tmp_path / "reviews.csv").write_text(rows)
    words = ("export", model_folder, "--layer", 1, *CENTERED, "--option", "column=review", *SHORT)
    assert_refused(cli(*words), "center_on")
    ended = cli(*words, "--center-on", "reviews.csv", "--json")
    assert ended.code == 0, ended
    assert json.loads(ended.out)["centered_on"] == "the 2 texts of reviews.csv"
