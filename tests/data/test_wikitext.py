"""The filters for WikiText, on any texts."""

from __future__ import annotations

import pytest

from layerscope.data import load_corpus
from layerscope.data.wikitext import filter_texts, is_heading
from layerscope.errors import DataError, UnknownNameError

PARAGRAPH = " Valkyria Chronicles III is a tactical role @-@ playing game " * 4
TEXTS = [" = Title = \n", " = = Part = = \n", PARAGRAPH, " Short one . \n", " tiny \n", "x = y and y = z"]


@pytest.mark.parametrize("text", [" = A = \n", "= = Two words = =", "== Raw ==", " = = = a = b = = = "])
def test_headings(text: str) -> None:
    assert is_heading(text)


@pytest.mark.parametrize("text", ["", "=", " = = ", "a = b", "= a", "a =", "= a ==", "= one =\n= two =", PARAGRAPH])
def test_not_headings(text: str) -> None:
    assert not is_heading(text)


def test_the_three_filters() -> None:
    assert filter_texts(TEXTS, "paper") == ([PARAGRAPH], {"heading": 2, "short": 3})
    assert filter_texts(TEXTS, "released") == ([TEXTS[2], TEXTS[3], TEXTS[5]], {"heading": 2, "short": 1})
    assert filter_texts(TEXTS, "none") == (TEXTS, {})


def test_thirty_tokens_are_enough() -> None:
    assert filter_texts(["w " * 29, "w " * 30], "paper") == (["w " * 30], {"short": 1})
    assert filter_texts(["abcdefghi", "abcdefghij"], "released") == (["abcdefghij"], {"short": 1})


def test_the_token_count_can_be_given() -> None:
    assert filter_texts(["a" * 30, "b" * 29], "paper", count_tokens=len) == (["a" * 30], {"short": 1})


def test_in_load_corpus() -> None:
    corpus = load_corpus(["", *TEXTS], text_filter="paper")
    assert corpus.texts == (PARAGRAPH,)
    assert corpus.dropped == {"empty": 1, "heading": 2, "short": 3}
    assert corpus.source["filters"] == {"text_filter": "paper", "min_tokens": 30}
    assert load_corpus(["a b", "a b c"], min_tokens=3).texts == ("a b c",)
    assert load_corpus(TEXTS, text_filter="paper", min_tokens=3).texts == (PARAGRAPH, TEXTS[3], TEXTS[5])


def test_bad_arguments() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'paper'"):
        load_corpus(TEXTS, text_filter="papers")
    with pytest.raises(DataError, match="min_tokens is -1"):
        load_corpus(TEXTS, min_tokens=-1)
    with pytest.raises(DataError, match=r"no usable text: 6 read \(2 heading, 4 short\)"):
        load_corpus(TEXTS, text_filter="paper", min_tokens=1000)
