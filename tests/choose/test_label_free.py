"""Rules on constructed curves whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest

from layerscope.choose.label_free import apply_rule
from tests.choose.support import evidence, valley_curve

FLAT = [4.0] * 21


def test_lowest_takes_the_minimum() -> None:
    made = evidence({"infonce": ([5.0, 3.0, 1.0, 1.1, 4.0], 0.2)})
    assert apply_rule("lowest_infonce", made).layer == 2


def test_a_valley_sends_the_rule_late_and_its_absence_early() -> None:
    late = apply_rule("evidence", evidence({"prompt_entropy": valley_curve()}))
    early = apply_rule("evidence", evidence({"prompt_entropy": FLAT}))
    assert 15 <= late.layer <= 18
    assert 1 <= early.layer <= 7
    assert late.ci_low < late.expected_gain < late.ci_high


@pytest.mark.parametrize(
    ("curves", "facts", "reason"),
    [
        ({"prompt_entropy": valley_curve()}, {"problem": "it has a pipeline"}, "it has a pipeline"),
        ({"infonce": [1.0] * 21}, {}, "neither prompt entropy nor the sink"),
        ({"prompt_entropy": FLAT}, {"tuning_known": False}, "anisotropy"),
        ({"prompt_entropy": [4.0] * 10 + [np.nan] + [4.0] * 10}, {}, "was measured at every layer"),
        ({"prompt_entropy": valley_curve()}, {"hides_valley": True}, "hides its valley"),
    ],
)
def test_weak_evidence_abstains_and_says_why(
    curves: dict[str, list[float]], facts: dict[str, object], reason: str
) -> None:
    answer = apply_rule("evidence", evidence(curves, **facts))
    assert answer.abstained
    assert answer.layer == 20
    assert reason in answer.reason


def test_the_sink_stands_in_where_the_norm_hides_the_valley() -> None:
    ratio = [1.0] * 8 + [120.0] * 10 + [1.0] * 3
    hidden = evidence({"prompt_entropy": FLAT, "sink_ratio": ratio}, hides_valley=True)
    answer = apply_rule("evidence", hidden)
    as_fitted = apply_rule("evidence", evidence({"prompt_entropy": valley_curve()}))
    assert answer.layer == as_fitted.layer
    assert answer.ci_high - answer.ci_low > as_fitted.ci_high - as_fitted.ci_low
