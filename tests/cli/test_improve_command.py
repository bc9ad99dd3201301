"""`layerscope improve` as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from layerscope.exporting import verifying
from tests.cli.support import Cli, assert_refused
from tests.exporting.conftest import reload_here
from tests.improving.test_improve import some_texts

pytest.importorskip("sentence_transformers")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "reload", reload_here)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.csv"
    file.write_text("id,question\n" + "\n".join(f"{i},{text}" for i, text in enumerate(some_texts(40))) + "\n")
    return file


def test_improve_writes_a_folder_and_says_why(cli: Cli, model_folder: Path, questions: Path, tmp_path: Path) -> None:
    words = ("--data", questions, "--column", "question", "--judge", "none", "--templates", "one-word", "--max-length", 96)
    ended = cli("improve", model_folder, *words, "--out", tmp_path / "better")
    assert ended.code == 0, ended
    assert (tmp_path / "better" / "modules.json").exists()
    assert (tmp_path / "better" / "candidates.csv").exists()
    assert "tiny-llama" in ended.out
    assert "SentenceTransformer(" in ended.out
    assert ended.err.startswith("about ")
    again = cli("improve", model_folder, *words, "--out", tmp_path / "better", "--json")
    told = json.loads(again.out)
    assert told["choice"]["rule"] == "improve"
    assert len(told["neighbors"]) == 30


@pytest.mark.parametrize(
    ("words", "phrases"),
    [
        (("--column", "answer"), ("answer", "question")),
        (("--max-cost", "0.5"), ("--max-cost is 1 or more",)),
        (("--budget", "2"), ("budget",)),
        (("--judge", "minilm-l7"), ("minilm-l7", "minilm-l6")),
        (("--templates", "one-wrod"), ("one-wrod", "one-word")),
        (("--labels", "nowhere.csv"), ("nowhere.csv",)),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    cli: Cli, model_folder: Path, questions: Path, tmp_path: Path, words: tuple[str, ...], phrases: tuple[str, ...]
) -> None:
    ended = cli("improve", model_folder, "--data", questions, "--out", tmp_path / "better", "--quiet", *words)
    assert_refused(ended, *phrases)
    assert not (tmp_path / "better").exists()
