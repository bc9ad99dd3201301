"""An improvement in one sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from layerscope.improving.words import page_words, print_improved, sentence
from tests.report.synthetic import synthetic_improvement

PROMPT = "one-word/last/raw/keep/corpus"


def sentence_of(readout: str, layer: int = 4, **evidence: Any) -> str:
    run = synthetic_improvement()
    run.manifest["evidence"] |= evidence
    run.choice = replace(run.choice, readout=readout, layer=layer)
    return sentence(run)


@pytest.mark.parametrize(
    ("readout", "layer", "beginning"),
    [
        ("plain/mean/applied/keep/head", 2, "layer 2 of 6 (plain text, head)"),
        ("plain/mean/applied/keep/corpus", 6, "the last layer (plain text, mean, centered)"),
        ("plain/last/raw/keep/none", 3, "layer 3 of 6 (plain text, last token, no norm)"),
        (PROMPT, 5, "layer 5 of 6 (one-word prompt, centered, no norm)"),
        (
            'Is "{text}" good/bad: "/last/raw/keep/corpus',
            5,
            "layer 5 of 6 (your prompt, centered, no norm)",
        ),
        ("echo/mean/raw/keep/none", 5, "layer 5 of 6 (echo prompt, mean, no norm)"),
    ],
)
def test_the_readout_is_in_plain_words(readout: str, layer: int, beginning: str) -> None:
    assert sentence_of(readout, layer).startswith(f"Reading {beginning} finds 3.0 of")


@pytest.mark.parametrize(
    ("cost", "ending"),
    [(2.354, "at 2.35 × the baseline's"), (0.333, "at 0.33 × the baseline's"), (1, "baseline's")],
)
def test_the_cost_ends_the_sentence(cost: float, ending: str) -> None:
    assert sentence_of(PROMPT, relative_cost=cost).endswith(f"{ending} computation")


def test_only_what_was_measured_is_claimed() -> None:
    for shares in (
        None,
        [0.3, 0.3],
        [0.0, 0.3],
    ):
        words = sentence_of(PROMPT, neighbors=shares, score_name="score on your labels")
        assert "raises the score on your labels from 0.200 to 0.400" in words
        assert "neighbors" not in words


def test_a_default_that_is_kept_is_the_whole_message(capsys: pytest.CaptureFixture[str]) -> None:
    run = synthetic_improvement()
    run.manifest["evidence"]["kept_default"] = True
    default = "plain/mean/applied/keep/none"
    run.choice = replace(run.choice, layer=6, readout=default, abstained=True)
    words = "small: keep the last layer, layer 6 of 6 (block.5)."
    assert page_words(run) == [words]
    print_improved(run)
    assert capsys.readouterr().out.startswith(words)
