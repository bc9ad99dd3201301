"""Improvements on the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import layerscope
from layerscope.improving import Improved
from layerscope.report.contents import gather
from layerscope.report.improve import improve_section as section
from layerscope.report.improve import neighbors_side_by_side
from layerscope.report.page import payload
from layerscope.report.words import NEIGHBORS
from tests.improving.test_improve import some_texts
from tests.report.synthetic import READOUTS, synthetic_evaluation, synthetic_run
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def improved() -> Improved:
    """An improvement whose choice is layer 2 of 3 under the one-word template, whatever the tiny
    model makes of it."""
    model = tiny_model("llama")
    model.identity["quantization"] = "Q4_1"
    run = layerscope.improve(
        model, some_texts(40), judge="none", templates=["one-word"], max_length=96, progress=False
    )
    gains = {
        "before": 0.2,
        "after": 0.4,
        "interval": [0.1, 0.3],
    }
    shares = [0.3, 0.6]
    run.manifest["evidence"] |= {
        **gains,
        "kept_default": False,
        "neighbors": shares,
        "relative_cost": 1 / 3,
    }
    run.choice = replace(run.choice, layer=2, readout=READOUTS[3], abstained=False)
    return run


def test_an_improvement_is_the_choice_and_the_headline_of_the_page(improved: Improved) -> None:
    profile = synthetic_run(improved.model, blocks=3)
    for runs in ([improved, profile], [profile, improved]):
        report = gather(runs)
        (mark,) = report.choices.values()
        assert (mark.layer, mark.readout, mark.rule, mark.layers) == (2, READOUTS[3], "improve", 3)
        found = "Reading layer 2 of 3 (one-word prompt, centered, no norm) finds 6.0 of each text's 10 nearest neighbors according to the model's own consistency (3.0 before)"
        assert report.headline[0] == f"{found}, at 0.33 × the baseline's computation."
        numbers, baseline, valley = report.headline[1:]
        assert "0.200 before → 0.400 (gain +0.100 to +0.300, 95 %), on 40 texts." in numbers
        assert baseline == "The baseline is the last layer, the mean of its tokens."
        assert valley.startswith("Prompt entropy has a valley at layer 1 (block.0)")
        assert "without labels" not in str(report.headline)


def test_the_choice_of_an_improvement_counts_more_than_that_of_scores(improved: Improved) -> None:
    scores = synthetic_evaluation(improved.model, blocks=3, readouts=READOUTS, best=1)
    report = gather([scores, improved])
    assert [(mark.layer, mark.rule) for mark in report.choices.values()] == [(2, "improve")]


def test_an_improvement_alone_is_marked_and_shown_before_the_charts(improved: Improved) -> None:
    report = gather([improved])
    assert [mark.layer for mark in report.choices.values()] == [2]
    (block,) = payload(report)["blocks"]
    assert block["chosen"]
    assert block["words"][0] == improved.choice.reason  # the headline is not said again
    assert [table["title"] for table in block["tables"]] == [NEIGHBORS]


def test_a_model_that_is_left_as_it_is_says_so_once(improved: Improved) -> None:
    evidence = {**improved.manifest["evidence"], "kept_default": True}
    choice = replace(
        improved.choice,
        layer=3,
        readout=READOUTS[0],
        abstained=True,
        reason="The texts do not show it.",
    )
    kept = replace(improved, choice=choice, manifest={**improved.manifest, "evidence": evidence})
    report = gather([kept, synthetic_run(improved.model, blocks=3)])
    assert report.headline[0] == "tiny-llama: keep the last layer, layer 3 of 3 (block.2)."
    assert [mark.layer for mark in report.choices.values()] == [3]
    (block,) = payload(report)["blocks"]
    assert block["title"].startswith("No better readout was found: tiny-llama on ")
    assert block["words"] == ["The texts do not show it."]


def test_what_is_true_of_all_runs_of_a_model_is_noted_once(improved: Improved) -> None:
    profile = synthetic_run(improved.model, blocks=3)
    profile.manifest["warnings"] = ["the weights were quantized (Q4_1) in their source."]
    told = [
        notice.text for notice in gather([improved, profile]).notices if "quantized" in notice.text
    ]
    assert told == ["The weights were quantized (Q4_1) in their source."]


def test_the_page_shows_the_choice_and_the_neighbors(tmp_path: Path) -> None:
    texts = some_texts(40)
    run = layerscope.improve(
        tiny_model("llama"),
        texts,
        judge="none",
        templates=["one-word"],
        max_length=96,
        progress=False,
    )
    wide = neighbors_side_by_side(run.neighbors)
    assert len(wide) == 15
    assert list(wide.columns) == ["text", "rank", "nearest before", "nearest now"]
    part = section(run)
    assert "nearest neighbors according to" in part.lead[0]
    assert [drawing.title for drawing in part.drawings] == [
        "Every layer under every readout",
        "What it costs",
    ]
    page = layerscope.write_report([run], tmp_path / "report.html")
    assert run.model in page.read_text(encoding="utf-8")
