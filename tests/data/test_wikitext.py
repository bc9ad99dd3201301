"""The filters for WikiText, on any texts."""

from __future__ import annotations

from collections import Counter

import pytest

from layerscope.data import load_corpus
from layerscope.data.records import drop_reason, is_heading
from layerscope.errors import DataError, UnknownNameError

PARAGRAPH = " Valkyria Chronicles III is a tactical role @-@ playing game " * 4
TEXTS = [
    " = Title = \n",
    " = = Part = = \n",
    PARAGRAPH,
    " Short one . \n",
    " tiny \n",
    "x = y and y = z",
]


@pytest.mark.parametrize(
    "text", [" = A = \n", "= = Two words = =", "== Raw ==", " = = = a = b = = = "]
)
def test_headings(text: str) -> None:
    assert is_heading(text)


@pytest.mark.parametrize(
    "text", ["", "=", " = = ", "a = b", "= a", "a =", "= a ==", "= one =\n= two =", PARAGRAPH]
)
def test_not_headings(text: str) -> None:
    assert not is_heading(text)


def kept(texts: list[str], name: str) -> tuple[list[str], Counter[str]]:
    why = [drop_reason(text, name) for text in texts]
    return [text for text, reason in zip(texts, why, strict=True) if reason is None], Counter(
        filter(None, why)
    )


def test_the_three_filters() -> None:
    assert kept(TEXTS, "paper") == ([PARAGRAPH], {"heading": 2, "short": 3})
    assert kept(TEXTS, "released") == ([TEXTS[2], TEXTS[3], TEXTS[5]], {"heading": 2, "short": 1})
    assert kept(TEXTS, "none") == (TEXTS, {})


def test_in_load_corpus() -> None:
    corpus = load_corpus(["", *TEXTS], text_filter="paper")
    assert corpus.texts == (PARAGRAPH,)
    assert corpus.dropped == {"empty": 1, "heading": 2, "short": 3}
    assert corpus.source["filters"] == {"text_filter": "paper", "min_tokens": 30}


def test_bad_arguments() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'paper'"):
        load_corpus(TEXTS, text_filter="papers")
    with pytest.raises(DataError, match=r"no usable text: 5 read \(2 heading, 3 short\)"):
        load_corpus([text for text in TEXTS if text != PARAGRAPH], text_filter="paper")
