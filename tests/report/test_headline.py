"""The headline says what the numbers bear out, and no more."""

from __future__ import annotations

import math
import re

import pytest

from layerscope import select
from layerscope.choose.choice import Choice
from layerscope.core.statistics import Interval
from layerscope.report.contents import gather
from layerscope.report.section import Section
from tests.report.synthetic import READOUTS, synthetic_evaluation, synthetic_run


def said(*runs: object) -> str:
    return " ".join(gather(runs).headline)


def test_a_clear_gain_with_its_interval() -> None:
    text = said(synthetic_evaluation(best=2, blocks=12))
    number = r"\+(\d+\.\d)"
    told = re.fullmatch(
        rf"Read layer 2 of 12 \(block\.1\): {number} \({number} to {number}\) points expected over the last layer, "
        r"same readout, 95 % \(mean score over 1 task 20\.0 → 30\.0\), on STSBenchmark\.",
        text,
    )
    assert told is not None
    gain, low, high = map(float, told.groups())
    assert gain == pytest.approx(
        10, abs=0.5
    )  # which it is, up to the noise that the choice was made with
    assert 8 < low < 10 < high < 12


def test_several_tasks_are_averaged() -> None:
    text = said(synthetic_evaluation(tasks=["a", "b", "c", "d"], best=2, half=0.01))
    assert "+10.0 (" in text
    assert "on average over 4 tasks" in text


def test_an_unclear_gain_is_not_called_one() -> None:
    text = said(synthetic_evaluation(best=2, half=0.2))
    assert text.startswith(
        "Keep the last layer, layer 6 of 6 (block.5), on STSBenchmark. Layer 2 is best of 7 on 1 task"
    )
    assert "the last layer is kept" in text


def test_a_last_layer_that_was_kept_is_not_called_the_best() -> None:
    run = synthetic_evaluation(best=2, half=0.2)
    assert select(run).abstained
    assert "is the best" not in said(run)


def test_without_intervals_it_says_so() -> None:
    run = synthetic_evaluation(best=2)
    run.gains[["ci_low", "ci_high"]] = math.nan
    assert "not known: the last layer is kept" in said(run)
    assert "±" not in said(run)


def test_the_last_layer_is_best() -> None:
    run = synthetic_evaluation(best=6)
    assert said(run) == "Read the last layer, layer 6 of 6 (block.5), on STSBenchmark."


def test_a_gain_is_told_by_its_causes() -> None:
    # layer 2: 30 with the default, 45 with the fourth readout; the last layer: 20 and 35
    text = said(synthetic_evaluation(readouts=READOUTS, best=2))
    assert text.startswith(f"Read layer 2 of 6 (block.1) with {READOUTS[3]}: template +15.0 (")
    assert ", layer +10.0 (" in text
    same_template = said(synthetic_evaluation(readouts=READOUTS[:2], best=2))
    assert f"with {READOUTS[1]}: readout +5.0 (" in same_template
    assert ", layer +10.0 (" in same_template
    worse = synthetic_evaluation(readouts=READOUTS[:2], best=2)
    for table in (worse.scores, worse.gains):
        table.loc[table["final_norm"] == "raw", "score"] -= 0.2
    assert " with " not in said(worse)


def test_the_page_says_what_select_chooses() -> None:
    """Under the default readout no layer is clearly better; under another one a layer is, and that
    is what both say."""
    run = synthetic_evaluation(readouts=[READOUTS[0], READOUTS[3]], best=5, half=0.2)
    other = run.gains["template"] == "one-word"
    for table in (run.scores, run.gains):
        table.loc[table["template"] == "one-word", "score"] += 0.4
    middle = (run.gains.loc[other, "ci_low"] + run.gains.loc[other, "ci_high"]) / 2
    for column, sign in (("ci_low", -1), ("ci_high", 1)):
        run.gains.loc[other, column] = middle + sign * 0.005
    choice = select(run)
    assert choice.readout == READOUTS[3]
    assert not choice.abstained
    (mark,) = gather([run]).choices.values()
    assert (mark.layer, mark.readout, mark.expected_gain) == (
        choice.layer,
        choice.readout,
        choice.expected_gain,
    )
    text = gather([run]).headline[0]
    assert text.lower() == f"{choice.headline()[:-1]}, on STSBenchmark.".partition(": ")[2].lower()


def test_the_valley_and_the_sink() -> None:
    text = said(synthetic_run(), synthetic_evaluation())
    assert "Prompt entropy has a valley at layer 3 (block.2): 1.47 nats" in text
    assert "It is the sink" in text
    assert "without that token it is 3.97." in text
    run = synthetic_run()
    rows = (run.table["metric"] == "prompt_entropy") & (run.table["sink"] == "drop")
    run.table.loc[rows & (run.table["layer"] == 3), "value"] = 1.5
    assert "It is not the sink" in said(run)
    assert "Prompt entropy has no valley" in said(synthetic_run(valley=False))


def test_the_norm_is_named_where_profiles_differ_in_it() -> None:
    text = said(synthetic_run(valley=False), synthetic_run(final_norm="raw"))
    assert "With final norm raw: Prompt entropy has a valley at layer 3" in text


def test_several_models_are_told_apart_the_largest_gain_first() -> None:
    text = said(
        synthetic_evaluation("b-model", best=6),
        synthetic_evaluation("a-model", best=2),
        synthetic_run("c-model"),
    )
    assert text.startswith("a-model: read layer 2 of 6 (block.1): +10.0")
    assert "b-model: read the last layer, layer 6 of 6" in text
    assert "c-model: Prompt entropy has a valley" in text


def test_a_choice_without_labels() -> None:
    facts = {"rule": "evidence", "layers": 6, "model": "small", "reason": "a reason"}
    choice = Choice(4, None, Interval(1.9, -2.0, 5.0), 0.3, **facts)
    text = said(synthetic_run(), choice)
    assert (
        "Without labels: read layer 4 of 6 (block.3): +1.9 (-2.0 to +5.0) points expected" in text
    )
    last = said(synthetic_run(), Choice(6, **facts))
    assert "Without labels: read the last layer, layer 6 of 6 (block.5)." in last
    assert "without labels" not in said(synthetic_run(), synthetic_evaluation(), choice).lower()


def test_nothing_to_say() -> None:
    text = "small: no metric here has a headline of its own; the curves are below."
    assert said(Section("map", "title", "small", [])) == text


def test_undefined_scores_do_not_count() -> None:
    run = synthetic_evaluation(best=2)
    for table in (run.scores, run.gains):
        table.loc[table["layer"] == 2, "score"] = math.nan
    assert said(run).startswith("Read layer ")
    assert "layer 2 of" not in said(run).lower()
