"""An improvement in one sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from layerscope.improving.terminal import print_improved
from layerscope.improving.words import page_words, sentence
from tests.report.synthetic import synthetic_improvement


def told(readout: str, layer: int = 4, **evidence: Any) -> str:
    run = synthetic_improvement()
    run.manifest["evidence"] |= evidence
    run.choice = replace(run.choice, readout=readout, layer=layer)
    return sentence(run)


@pytest.mark.parametrize(
    ("readout", "layer", "begins"),
    [
        ("plain/mean/applied/keep/head", 2, "Reading layer 2 of 6 (plain text, head) finds"),
        (
            "plain/mean/applied/keep/corpus",
            6,
            "Reading the last layer (plain text, mean, centered) finds",
        ),
        (
            "plain/mean/raw/keep/corpus",
            3,
            "Reading layer 3 of 6 (plain text, mean, centered, no norm) finds",
        ),
        (
            "plain/last/raw/keep/none",
            3,
            "Reading layer 3 of 6 (plain text, last token, no norm) finds",
        ),
        (
            "one-word/last/raw/keep/corpus",
            5,
            "Reading layer 5 of 6 (one-word prompt, centered, no norm) finds",
        ),
        (
            "three-demonstrations/last/raw/keep/none",
            6,
            "Reading the last layer (three-demonstrations prompt, no norm) finds",
        ),
        (
            'Is "{text}" good/bad: "/last/raw/keep/corpus',
            5,
            "Reading layer 5 of 6 (your prompt, centered, no norm) finds",
        ),
        ("echo/mean/raw/keep/none", 5, "Reading layer 5 of 6 (echo prompt, mean, no norm) finds"),
    ],
)
def test_how_it_is_read_is_said_in_plain_words(readout: str, layer: int, begins: str) -> None:
    said = told(readout, layer)
    assert said.startswith(begins)
    assert "applied" not in said


@pytest.mark.parametrize(
    ("cost", "ends"),
    [
        (2.354, "at 2.35 × today's computation"),
        (0.333, "at 0.33 × today's computation"),
        (1.0, "at today's computation"),
    ],
)
def test_what_it_costs(cost: float, ends: str) -> None:
    assert told("one-word/last/raw/keep/corpus", relative_cost=cost).endswith(f", {ends}")


def test_only_what_was_measured_is_claimed() -> None:
    readout = "one-word/last/raw/keep/corpus"
    for shares in (
        None,
        {"judge": "minilm-l6", "before": 0.3, "after": 0.3},
        {"judge": "minilm-l6", "before": 0.0, "after": 0.3},
    ):
        said = told(readout, neighbors=shares, score_name="score on your labels")
        assert "raises the score on your labels from 0.200 to 0.400" in said
        assert "neighbors" not in said


def test_a_default_that_is_kept_is_told_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    run = synthetic_improvement()
    run.manifest["evidence"]["kept_default"] = True
    run.choice = replace(
        run.choice, layer=6, readout="plain/mean/applied/keep/none", abstained=True
    )
    assert sentence(run) == "small: keep the last layer, layer 6 of 6 (block.5)"
    assert page_words(run) == ["small: keep the last layer, layer 6 of 6 (block.5)."]
    print_improved(run)
    assert capsys.readouterr().out.startswith("small: keep the last layer, layer 6 of 6 (block.5).")
