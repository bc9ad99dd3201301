"""A choice as a value that can be stored, and in words."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from layerscope.choose.choice import Choice, gains_in_words, lines
from layerscope.choose.select import select
from layerscope.core.readout import Readout
from layerscope.core.statistics import Interval
from layerscope.errors import LayerscopeError, RunFolderError
from layerscope.evaluation.run import Evaluation
from tests.choose.support import evaluation

WORD = Readout("one-word", "last")


def template_helps() -> Evaluation:
    """An evaluation in which nearly all of the gain is the template's."""
    scores = {Readout(): [0.1, 0.2, 0.25, 0.2], WORD: [0.1, 0.3, 0.64, 0.634]}
    return evaluation({}, half=0.002, readouts=scores)


def test_the_gain_of_the_readout_and_of_the_layer_are_told_apart() -> None:
    choice = select(template_helps())
    assert (choice.layer, choice.how) == (2, WORD)
    assert choice.gain_readout.value == pytest.approx(43.4, abs=0.3)
    assert choice.gain_layer.value == pytest.approx(0.6, abs=0.3)
    parts = choice.gain_readout.value + choice.gain_layer.value
    assert parts == pytest.approx(choice.expected_gain)
    headline = choice.headline()
    assert "template +43." in headline
    assert "layer +0." in headline
    assert "over the last layer" not in headline
    assert "under the default readout" in dict(lines(choice))["risk"]
    answer = json.loads(choice.to_json())
    assert answer["gain_readout"]["value"] == pytest.approx(choice.gain_readout.value)
    assert (answer["before"], answer["after"]) == (pytest.approx(20.0), pytest.approx(64.0))


def test_one_readout_gains_over_its_own_last_layer() -> None:
    choice = select(evaluation({"a": [0.2, 0.5, 0.8, 0.6]}, half=0.005))
    assert choice.gain_readout == Interval(0.0, 0.0, 0.0)
    assert choice.gain_layer.value == choice.expected_gain
    assert "over the last layer, same readout" in gains_in_words(choice)


def test_a_readout_at_the_last_layer_gains_nothing_by_layer() -> None:
    scores = {Readout(): [0.1, 0.2, 0.2], WORD: [0.1, 0.3, 0.6]}
    choice = select(evaluation({}, half=0.002, readouts=scores))
    assert choice.layer == choice.layers
    assert choice.gain_layer == Interval(0.0, 0.0, 0.0)
    assert "same layer" in gains_in_words(choice)


def test_a_readout_can_be_asked_for() -> None:
    run = template_helps()
    assert select(run, readouts="one-word/last").how == WORD
    with pytest.raises(LayerscopeError, match="did not measure plain/max"):
        select(run, readouts=["plain/max"])


def test_a_choice_is_an_immutable_value_that_json_keeps(tmp_path: Path) -> None:
    choice = select(template_helps())
    assert Choice.from_json(choice.to_json()) == choice
    file = tmp_path / "choice.json"
    file.write_text(choice.to_json())
    assert Choice.from_json(file) == choice
    with pytest.raises(dataclasses.FrozenInstanceError):
        choice.layer = 3  # type: ignore[misc]
    file.write_text("[1]")
    with pytest.raises(RunFolderError, match="select --json"):
        Choice.from_json(file)


def test_a_choice_knows_its_model_and_what_an_export_needs() -> None:
    scores = {Readout(): [0.1, 0.2, 0.2], Readout(centering="corpus"): [0.1, 0.3, 0.6]}
    run = evaluation({}, half=0.002, readouts=scores)
    run.manifest["conventions"] = {"max_length": 64, "unit_length": True}
    choice = select(run)
    assert (choice.max_length, choice.unit_length, choice.center_on) == (64, True, "nowhere")
    assert choice.identity["weights_sha256"] == "w"


@pytest.mark.parametrize(("name", "value"), [("layer", [3]), ("layer", True), ("readout", 2)])
def test_a_choice_with_a_value_of_another_kind_is_refused(name: str, value: object) -> None:
    whole = Choice(3, layers=6).as_dict()
    assert Choice.from_json(whole).layer == 3
    with pytest.raises(RunFolderError, match=f"holds no choice of a layer \\({name} is"):
        Choice.from_json({**whole, name: value})
