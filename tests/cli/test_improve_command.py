"""`layerscope improve` as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import layerscope
from layerscope.exporting import verifying
from layerscope.vectors import VectorSpace
from tests.cli.support import Cli, assert_refused
from tests.exporting.conftest import reload_here
from tests.improving.test_improve import some_texts
from tests.improving.test_search import some_search
from tests.tiny import build_tiny

pytest.importorskip("sentence_transformers")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "reload", reload_here)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.csv"
    file.write_text(
        "id,question\n" + "\n".join(f"{i},{text}" for i, text in enumerate(some_texts(40))) + "\n"
    )
    return file


def test_improve_writes_a_folder_and_says_why(
    cli: Cli, model_folder: Path, questions: Path, tmp_path: Path
) -> None:
    words = (
        "--data",
        questions,
        "--column",
        "question",
        "--judge",
        "none",
        "--templates",
        "one-word",
        "--max-length",
        96,
    )
    ended = cli("improve", model_folder, *words, "--out", tmp_path / "better")
    assert ended.code == 0, ended
    assert (tmp_path / "better" / "modules.json").exists()
    assert (tmp_path / "better" / "candidates.csv").exists()
    assert "tiny-llama" in ended.out
    assert "SentenceTransformer(" in ended.out
    assert "layers × readouts of tiny-llama on 40 of 40 texts, judged by" in ended.err
    assert (ended.out + ended.err).count("Next:") == 1
    again = cli("improve", model_folder, *words, "--out", tmp_path / "better", "--json")
    told = json.loads(again.out)
    assert told["choice"]["rule"] == "improve"
    assert len(told["neighbors"]) == 30
    ended = cli("improve", model_folder, *words, "--out", tmp_path / "private", "--no-texts")
    assert ended.code == 0, ended
    assert "river" not in (tmp_path / "private" / "neighbors.csv").read_text() + ended.out


@pytest.mark.parametrize(
    ("words", "phrases"),
    [
        (("--column", "answer"), ("answer", "question")),
        (("--budget", "0"), ("budget",)),
        (("--judge", "minilm-l7"), ("minilm-l7", "minilm-l6")),
        (("--templates", "one-wrod"), ("one-wrod", "one-word")),
        (("--labels", "nowhere.csv"), ("nowhere.csv",)),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    cli: Cli,
    model_folder: Path,
    questions: Path,
    tmp_path: Path,
    words: tuple[str, ...],
    phrases: tuple[str, ...],
) -> None:
    ended = cli(
        "improve",
        model_folder,
        "--data",
        questions,
        "--out",
        tmp_path / "better",
        *words,
    )
    assert_refused(ended, *phrases)
    assert not (tmp_path / "better").exists()


LOUD = ("--templates", "one-word", "--max-length", 96)
QUICK = (*LOUD, "--json")


@pytest.mark.parametrize(
    ("content", "phrases"),
    [
        ("one text\n", ("texts.txt holds 1 different text;", "at least 20")),
        ("the same\n" * 50, ("(50 texts, of which 1 differ)", "at least 20")),
        ("", ("texts.txt is empty", "at least one text")),
        ("\n \n\n", ("holds no usable text", "3 read", "whitespace")),
    ],
)
def test_texts_that_show_nothing_are_refused(
    cli: Cli, model_folder: Path, tmp_path: Path, content: str, phrases: tuple[str, ...]
) -> None:
    file = tmp_path / "texts.txt"
    file.write_text(content)
    assert_refused(
        cli("improve", model_folder, "--data", file, "--out", tmp_path / "better", *QUICK), *phrases
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt"]


def test_texts_of_one_word_are_answered(cli: Cli, model_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text(
        "\n".join(
            f"{a}{b}"
            for a in ("sun", "rain", "snow", "wind", "fog")
            for b in ("day", "ny", "y", "fall", "less")
        )
    )
    ended = cli(
        "improve",
        model_folder,
        "--data",
        file,
        "--judge",
        "none",
        "--out",
        tmp_path / "better",
        *LOUD,
    )
    assert ended.code == 0, ended
    assert "tiny-llama" in ended.out
    assert (tmp_path / "better" / "modules.json").exists()


def test_texts_that_differ_in_what_is_cut_off_are_refused(
    cli: Cli, model_folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "long.txt"
    file.write_text("\n".join("the same beginning of every text " * 6 + str(i) for i in range(30)))
    ended = cli(
        "improve",
        model_folder,
        "--data",
        file,
        "--judge",
        "none",
        "--out",
        tmp_path / "better",
        *QUICK,
    )
    assert_refused(
        ended, "of 30 texts only 1 differ once they are cut to 96 tokens", "Raise max_length="
    )


def test_a_language_that_the_judge_does_not_know(
    cli: Cli, model_folder: Path, tmp_path: Path
) -> None:
    judge = tmp_path / "judge"
    words = {"[PAD]": 0, "[UNK]": 1, "the": 2, "river": 3}
    core = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    build_tiny("bert").save_pretrained(judge)
    PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="[UNK]", pad_token="[PAD]"
    ).save_pretrained(judge)
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(some_texts(30)))
    ended = cli(
        "improve",
        model_folder,
        "--data",
        file,
        "--judge",
        judge,
        "--out",
        tmp_path / "better",
        *LOUD,
    )
    assert ended.code == 0, ended
    told = " ".join(ended.out.split())
    assert "judge does not know" in told
    assert (
        "is not asked: another language? The model is judged by its own consistency instead."
        in told
    )
    assert (tmp_path / "better" / "modules.json").exists()


def test_a_judge_that_is_the_model_itself(
    cli: Cli, model_folder: Path, questions: Path, tmp_path: Path
) -> None:
    words = ("--data", questions, "--judge", model_folder, "--out", tmp_path / "better", *QUICK)
    assert_refused(cli("improve", model_folder, *words), "is the model itself", "judge='none'")
    assert not (tmp_path / "better").exists()


def test_an_interruption_is_one_line_and_the_same_command_goes_on(
    cli: Cli, model_folder: Path, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        "improve",
        model_folder,
        "--data",
        questions,
        "--judge",
        "none",
        "--out",
        tmp_path / "better",
        *QUICK,
    )
    with monkeypatch.context() as patched:
        patched.setattr(VectorSpace, "add", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        ended = cli(*words)
    assert ended.code == 130
    assert (
        ended.err.strip()
        == "layerscope: stopped. Finished work is kept: run the same command again to resume."
    )
    assert cli(*words).code == 0


def test_improve_a_search(cli: Cli, model_folder: Path, tmp_path: Path) -> None:
    queries, documents, _ = some_search()
    for name, texts in (("q", queries), ("d", documents)):
        (tmp_path / f"{name}.csv").write_text(
            "id,text\n" + "".join(f"{name}{i},{text}\n" for i, text in enumerate(texts))
        )
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("query,document\n" + "".join(f"q{i},d{i}\n" for i in range(60)))
    given = (
        "--queries",
        tmp_path / "q.csv",
        "--data",
        tmp_path / "d.csv",
        "--judge",
        "none",
        "--max-length",
        120,
    )
    out = tmp_path / "better"
    ended = cli("improve", model_folder, *given, "--pairs", pairs, "--out", out)
    assert ended.code == 0, ended
    for phrase in (
        "nDCG@10",
        "recall@10",
        "30 queries that did not choose",
        "encode_query(queries)",
    ):
        assert phrase in ended.out
    assert (ended.out + ended.err).count("Next:") == 1
    found = cli("search", out, queries[7], "--data", tmp_path / "d.csv", "--top", 1, "--json")
    assert (
        json.loads(found.out)[0]["text"]
        == layerscope.load_run(out).search(queries[7], documents, top=1)["text"][0]
    )
    told = json.loads((out / "config_sentence_transformers.json").read_text())
    assert list(told["prompts"]) == ["query", "document"]
    pairs.write_text("query,document\nq1,d99\n")
    (tmp_path / "none.csv").write_text("")
    refused = ("improve", model_folder, *given[2:], "--out", tmp_path / "other")
    assert_refused(
        cli(*refused, "--queries", tmp_path / "q.csv", "--pairs", pairs),
        "1 document texts or ids",
        "d99",
    )
    assert_refused(cli(*refused, "--queries", tmp_path / "q.csv"), "judge='minilm-l6'", "pairs=")
    assert_refused(cli(*refused, "--pairs", pairs), "queries=")
    assert_refused(cli(*refused, "--queries", tmp_path / "none.csv"), "none.csv is empty")
    assert_refused(cli(*refused, "--queries", tmp_path / "nowhere.csv"), "nowhere.csv")
    assert_refused(cli(*refused, "--queries", tmp_path / "d.csv"), "the same texts")
    assert not (tmp_path / "other").exists()
