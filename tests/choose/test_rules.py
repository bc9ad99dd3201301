"""Rules on constructed curves whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest

from layerscope.choose.rules import RULES, get_rule
from layerscope.errors import LayerscopeError, UnknownNameError
from tests.choose.support import evidence, valley_curve


def test_every_rule_is_known_by_name() -> None:
    assert {
        "last",
        "fixed_depth",
        "evidence",
        "lowest_dime",
        "lowest_infonce",
        "lowest_dataset_entropy",
    } <= set(RULES)


@pytest.mark.parametrize(
    ("name", "layer"),
    [("last", 20), ("fixed_depth", 16), ("fixed_depth:0.5", 10), ("fixed_depth:0.33", 7)],
)
def test_rules_that_look_at_nothing(name: str, layer: int) -> None:
    assert get_rule(name)(evidence({"dime": list(range(21))})).layer == layer


def test_lowest_takes_the_minimum_and_ties_within_intervals() -> None:
    made = evidence({"infonce": ([5.0, 3.0, 1.0, 1.1, 4.0], 0.2)})
    answer = get_rule("lowest_infonce")(made)
    assert answer.layer == 2
    assert answer.near == (2, 3)
    with pytest.raises(LayerscopeError, match="lowest_dime needs dime"):
        get_rule("lowest_dime")(made)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("fixed_deep", "fixed_depth"),
        ("last:3", "takes no number"),
        ("fixed_depth:x", "number"),
        ("fixed_depth:2", "between"),
    ],
)
def test_wrong_names_say_what_is_valid(name: str, told: str) -> None:
    with pytest.raises((UnknownNameError, LayerscopeError), match=told):
        get_rule(name)


def test_a_valley_sends_the_rule_late_and_its_absence_early() -> None:
    rule = get_rule("evidence")
    late, early = (
        rule(evidence({"prompt_entropy": valley_curve()})),
        rule(evidence({"prompt_entropy": [4.0] * 21})),
    )
    assert 15 <= late.layer <= 18
    assert 1 <= early.layer <= 7
    assert late.layer in late.near
    assert early.layer in early.near
    assert late.forecast is not None
    low, high = late.forecast.interval(late.layer)
    assert low < late.forecast.gain[late.layer] < high


@pytest.mark.parametrize(
    ("curves", "facts", "told"),
    [
        ({"prompt_entropy": valley_curve()}, {"tuned": "it has a pipeline"}, "it has a pipeline"),
        ({"prompt_entropy": valley_curve()}, {"wordless": True}, "hardly made of words"),
        ({"infonce": [1.0] * 21}, {}, "neither prompt entropy nor the sink"),
        ({"prompt_entropy": [4.0] * 21}, {"tuning_known": False}, "anisotropy"),
        ({"prompt_entropy": [4.0] * 10 + [np.nan] + [4.0] * 10}, {}, "not measured at every layer"),
    ],
)
def test_weak_evidence_abstains_and_says_why(
    curves: dict[str, list[float]], facts: dict[str, object], told: str
) -> None:
    answer = get_rule("evidence")(evidence(curves, **facts))
    assert answer.abstained
    assert answer.layer == 20
    assert told in answer.reason


def test_the_sink_stands_in_where_the_norm_hides_the_valley() -> None:
    ratio = [1.0] * 8 + [120.0] * 10 + [1.0] * 3
    hidden = evidence({"prompt_entropy": [4.0] * 21, "sink_ratio": ratio}, final_norm="applied")
    seen = evidence({"prompt_entropy": valley_curve()})
    answer, as_fitted = get_rule("evidence")(hidden), get_rule("evidence")(seen)
    assert answer.layer == as_fitted.layer
    assert any("final_norm=hf" in warning for warning in answer.warnings)
    assert answer.forecast is not None
    assert as_fitted.forecast is not None
    assert answer.forecast.scale > as_fitted.forecast.scale
    # without a final norm `applied` changes nothing, so the entropy itself is read
    bare = get_rule("evidence")(
        evidence({"prompt_entropy": valley_curve()}, final_norm="applied", has_final_norm=False)
    )
    assert bare.warnings == ()
