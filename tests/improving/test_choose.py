"""The rule of choice: ties, costs, budgets, and weak evidence."""

from __future__ import annotations

import numpy as np
import pytest

from layerscope.core.readout import Readout
from layerscope.errors import LayerscopeError
from layerscope.improving.choose import decide, relative_costs
from layerscope.selection.judges.base import Judgment

READOUTS = [Readout(), Readout("one-word", "last", "raw", "keep", "corpus")]
LAYERS = [0, 1, 2, 3, 4]


def judged(score, error: float) -> Judgment:
    score = np.array(score, dtype=float)
    rng = np.random.default_rng(0)
    return Judgment("test", score, score[..., None] + error * rng.normal(size=(*score.shape, 300)))


COSTS = relative_costs([10, 20], LAYERS, 4)


def test_costs_are_tokens_times_blocks():
    assert COSTS[0, -1] == 1
    assert COSTS[1, -1] == 2
    assert COSTS[1, 2] == 1
    assert 0 < COSTS[0, 0] < COSTS[0, 1]


def test_a_clear_winner_is_taken_and_its_gain_is_split():
    decision = decide(judged([[0.1, 0.2, 0.2, 0.2, 0.2], [0.1, 0.2, 0.4, 0.9, 0.7]], 0.001), READOUTS, LAYERS, COSTS)
    assert decision.chosen == decision.best == (1, 3)
    assert decision.gain == pytest.approx(0.7)
    assert decision.low > 0.65
    assert decision.template_gain == pytest.approx(0.5)
    assert decision.layer_gain == pytest.approx(0.2)
    assert not decision.weak


def test_of_candidates_that_tie_the_cheapest_is_taken():
    decision = decide(judged([[0.1, 0.2, 0.2, 0.2, 0.2], [0.1, 0.89, 0.4, 0.9, 0.7]], 0.02), READOUTS, LAYERS, COSTS)
    assert decision.best == (1, 3)
    assert decision.chosen == (1, 1)
    assert decision.tied.sum() == 2


def test_the_default_stays_where_the_evidence_is_weak():
    decision = decide(judged([[0.1, 0.2, 0.2, 0.2, 0.5], [0.1, 0.2, 0.4, 0.55, 0.4]], 0.2), READOUTS, LAYERS, COSTS)
    assert decision.weak
    assert decision.chosen == decision.reference == (0, 4)
    assert decision.gain == 0


def test_a_budget_limits_the_layers():
    judgment = judged([[0.1, 0.2, 0.2, 0.2, 0.2], [0.1, 0.5, 0.4, 0.9, 0.7]], 0.001)
    assert decide(judgment, READOUTS, LAYERS, COSTS, budget=0.5).chosen == (1, 1)


def test_nothing_to_judge_is_an_error():
    with pytest.raises(LayerscopeError, match="same vector"):
        decide(judged(np.full((2, 5), np.nan), 0.1), READOUTS, LAYERS, COSTS)
