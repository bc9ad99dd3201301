"""The rule of choice: ties, costs, budgets, and weak evidence."""

from __future__ import annotations

import numpy as np
import pytest

from layerscope.choose import Scores, decide_by_judge
from layerscope.choose.choice import Choice
from layerscope.choose.decide import SECOND
from layerscope.core.readout import Readout
from layerscope.core.templates import names_of
from layerscope.errors import LayerscopeError
from layerscope.improving.candidates import template_names
from layerscope.improving.choose import (
    as_choice,
    baseline_of,
    front,
    make_candidates,
    relative_costs,
)
from layerscope.improving.judging import Judges, prefers_plain_text

READOUTS = [Readout(), Readout("one-word", "last", "raw", "keep", "corpus")]
LAYERS = [0, 1, 2, 3, 4]


def judged(scores, error: float, weight: float = 1.0) -> Scores:
    values = np.array(scores, dtype=float).ravel()
    rng = np.random.default_rng(0)
    draws = values[:, None] + error * rng.normal(size=(len(values), 300))
    return Scores(values, draws, weight=weight)


def decide(judgment: Scores, budget=None, suited=None, second: Scores | None = None) -> Choice:
    candidates = make_candidates(READOUTS, LAYERS, COSTS, suited, judgment.defined)
    opinion = None if second is None else lambda template: second
    decision = decide_by_judge(candidates, judgment, baseline_of(candidates), budget, opinion)
    return as_choice(decision, candidates, judgment)


def at(choice: Choice) -> tuple[int, int]:
    return [readout.name for readout in READOUTS].index(str(choice.readout)), choice.layer


COSTS = relative_costs([10, 20], LAYERS, 4)


def test_costs_are_tokens_times_blocks():
    assert COSTS[0, -1] == 1
    assert COSTS[1, -1] == 2
    assert COSTS[1, 2] == 1
    assert 0 < COSTS[0, 0] < COSTS[0, 1]


def test_a_clear_winner_is_taken_and_its_gain_is_split():
    choice = decide(judged([[0.1, 0.2, 0.2, 0.2, 0.2], [0.1, 0.2, 0.4, 0.9, 0.7]], 0.001))
    assert at(choice) == (1, 3)
    assert choice.after - choice.before == pytest.approx(0.7)
    assert choice.comparison.interval[0] > 0.65
    assert choice.comparison.readout_gain == pytest.approx(0.5)
    assert choice.comparison.layer_gain == pytest.approx(0.2)
    assert choice.expected_gain is None  # a judge's score is not in points
    assert not choice.abstained
    assert choice.table.iloc[0][["readout", "layer", "chosen"]].tolist() == [
        READOUTS[1].name,
        3,
        True,
    ]


def test_of_candidates_that_score_practically_the_same_the_cheapest_is_taken():
    """The difference of two candidates has an error of about 0.028 here, so 0.0003 behind is near,
    and 0.002 is not."""
    choice = decide(judged([[0.1, 0.2, 0.2, 0.2, 0.2], [0.1, 0.8997, 0.898, 0.9, 0.7]], 0.02))
    assert at(choice) == (1, 1)
    assert choice.comparison.near == 2
    assert choice.tied == (1, 2, 3)  # what noise cannot tell from the best is more
    assert choice.comparison.tied == 3


def test_a_second_opinion_counts_among_the_layers_of_the_judges_template():
    judgment = judged([[0.1, 0.2, 0.2, 0.2, 0.2], [0.1, 0.2, 0.88, 0.9, 0.3]], 0.001)
    # it likes layer 2 much better
    second = judged([[np.nan] * 5, [0.1, 0.1, 0.8, 0.2, 0.1]], 0.001, SECOND)
    assert at(decide(judgment)) == (1, 3)
    choice = decide(judgment, second=second)
    assert at(choice) == (1, 2)
    assert choice.after - choice.before == pytest.approx(0.68)  # as the judge sees it


def test_a_second_opinion_is_no_evidence_of_a_gain():
    judgment = judged([[0.1, 0.2, 0.2, 0.2, 0.5], [0.1, 0.2, 0.4, 0.55, 0.4]], 0.2)
    second = judged([[np.nan] * 5, [0.1, 0.2, 0.4, 0.9, 0.4]], 0.001, SECOND)
    choice = decide(judgment, second=second)
    assert choice.abstained
    assert choice.comparison.kept_default


def test_readouts_that_are_not_eligible_are_not_chosen():
    judgment = judged([[0.1, 0.9, 0.9, 0.95, 0.2], [0.1, 0.2, 0.4, 0.8, 0.3]], 0.001)
    assert at(decide(judgment))[0] == 0
    assert at(decide(judgment, suited=[False, True])) == (1, 3)
    # where nothing that is eligible can be judged, the rest is
    assert at(decide(judgment, suited=[False, False]))[0] == 0


def test_what_is_not_eligible_is_not_on_the_front():
    judgment = judged([[0.1, 0.6, 0.6, 0.6, 0.1], [0.1, 0.3, 0.5, 0.4, 0.3]], 0.01)
    table = decide(judgment, suited=[False, True]).table
    assert set(front(table)["readout"]) == {READOUTS[1].name}
    assert not table.loc[table["readout"] == READOUTS[0].name, "eligible"].any()
    assert set(front(decide(judgment).table)["readout"]) == {READOUTS[0].name}


@pytest.mark.parametrize(("plain", "prompt", "warned"), [(0.5, 0.4, True), (0.4, 0.5, False)])
def test_a_judge_that_goes_by_words_likes_the_plain_text_best(plain, prompt, warned):
    judgment = judged([[0.1, plain, 0.2, 0.2, 0.2], [np.nan, 0.2, 0.3, prompt, 0.3]], 0.001)
    assert prefers_plain_text(judgment, READOUTS) is warned


def test_what_is_template_names():
    assert template_names(None) == ["plain", "one-word", "step-by-step"]
    assert template_names(None, labels=True) == ["plain", *names_of("with_labels")]
    assert template_names(["topic", "one-word"]) == ["plain", "topic", "one-word"]


def test_without_an_encoder_sentences_are_read_by_prompts_alone():
    alone = Judges()
    assert alone.eligible(READOUTS, tokens=20) == [False, True]
    assert alone.eligible(READOUTS, tokens=200) is None  # a document is no sentence


def test_the_default_stays_where_the_evidence_is_weak():
    choice = decide(judged([[0.1, 0.2, 0.2, 0.2, 0.5], [0.1, 0.2, 0.4, 0.55, 0.4]], 0.2))
    assert choice.abstained
    assert at(choice) == (0, 4)
    assert choice.comparison.interval == (0, 0)


def test_a_budget_limits_the_layers():
    judgment = judged([[0.1, 0.2, 0.2, 0.2, 0.2], [0.1, 0.5, 0.4, 0.9, 0.7]], 0.001)
    assert at(decide(judgment, budget=0.5)) == (1, 1)


def test_nothing_to_judge_is_an_error():
    with pytest.raises(LayerscopeError, match="same vector"):
        decide(judged(np.full((2, 5), np.nan), 0.1))
