"""What a corpus is, and what a spec can name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerscope.data import Corpus, load_corpus
from layerscope.errors import DataError, InvalidValueError, UnknownNameError

words = st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip)


def test_blank_texts_are_left_out_and_counted() -> None:
    corpus = load_corpus(["a", "", " \n", "b", "\t", "a", None, "half \ud800"])
    assert corpus.texts == ("a", "b", "a")
    assert corpus.dropped == {"empty": 1, "whitespace": 2, "null": 1, "not Unicode": 1}
    assert corpus.source["duplicates"] == 1
    assert corpus.source["read"] == 8
    assert len(corpus) == 3
    assert list(corpus) == ["a", "b", "a"]


@given(st.lists(words, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_fingerprint_ignores_order_only(texts: list[str], rng: object) -> None:
    moved = list(texts)
    rng.shuffle(moved)  # type: ignore[attr-defined]
    one, two = load_corpus(texts), load_corpus(moved)
    assert one.fingerprint == two.fingerprint
    assert load_corpus([*texts, texts[0]]).fingerprint != one.fingerprint
    assert load_corpus([texts[0] + "x", *texts[1:]]).fingerprint != one.fingerprint


def test_fingerprint_does_not_depend_on_the_source(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a\n\nb\n")
    assert load_corpus(tmp_path / "t.txt").fingerprint == load_corpus(["b", "a"]).fingerprint
    # Texts are not merely joined: where one ends is part of the fingerprint.
    assert Corpus.of(["ab", "c"]).fingerprint != Corpus.of(["a", "bc"]).fingerprint


def test_limit_takes_the_first_usable_texts() -> None:
    corpus = load_corpus(["", "a", " ", "b", "c", ""], limit=2)
    assert corpus.texts == ("a", "b")
    assert corpus.dropped == {"empty": 1, "whitespace": 1}
    assert corpus.source["read"] == 4
    assert load_corpus(["a", "b"], limit=10).texts == ("a", "b")


def test_limit_stops_reading() -> None:
    def texts():  # type: ignore[no-untyped-def]
        yield "a"
        raise AssertionError("read too far")

    assert load_corpus(texts(), limit=1).texts == ("a",)


@pytest.mark.parametrize("limit", [0, -1, 2.0, True, "3"])
def test_bad_limit(limit: object) -> None:
    with pytest.raises(InvalidValueError, match="limit is"):
        load_corpus(["a"], limit=limit)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [3, float("nan"), b"bytes", ["nested"]])
def test_a_value_that_is_not_a_string(bad: object) -> None:
    with pytest.raises(DataError, match="item 1 is not a string"):
        load_corpus(["fine", bad])  # type: ignore[list-item]


@pytest.mark.parametrize("bad", [3, b"bytes", {"text": "a"}, None])
def test_a_spec_of_the_wrong_type(bad: object) -> None:
    with pytest.raises(DataError, match="give a list of strings, a file"):
        load_corpus(bad)  # type: ignore[arg-type]


def test_no_texts() -> None:
    with pytest.raises(DataError, match="no usable text: 0 read"):
        load_corpus([])


def test_missing_file_suggests_near_names(tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text("text\na b\n")
    with pytest.raises(DataError, match=r"no file .*Did you mean '.*/reviews\.csv'"):
        load_corpus(tmp_path / "review.csv")
    with pytest.raises(DataError, match=r"no file '.*nowhere/zzz\.csv'\. Valid:"):
        load_corpus(tmp_path / "nowhere" / "zzz.csv")


def test_unknown_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownNameError, match="Did you mean 'lee'"):
        load_corpus("leee")
    for text in ("This is a sentence of mine.", "x" * 10_000 + ".txt", "nul\0 byte"):
        with pytest.raises(DataError, match="a text itself goes in a list"):
            load_corpus(text)
    # A path in a folder that exists is a missing file, not a dataset of the hub.
    (tmp_path / "data").mkdir()
    with pytest.raises(DataError, match="no file 'data/mine'"):
        load_corpus("data/mine")
