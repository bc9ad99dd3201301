"""The decision of `improve`: ties, costs, budgets, and weak evidence."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from layerscope.choose import Scores, decide_by_judge
from layerscope.choose.decide import LEAD, SECOND
from layerscope.core.readout import Readout
from layerscope.core.templates import names_of
from layerscope.errors import LayerscopeError
from layerscope.improving.candidates import baseline_of, make_candidates, template_names
from layerscope.improving.flow import block_unsuited
from layerscope.improving.judging import Judges
from layerscope.improving.result import Outcome, describe, front

READOUTS = [Readout(), Readout("one-word", "last", "raw", "keep", "corpus")]
MODEL = SimpleNamespace(n_blocks=4, anatomy=SimpleNamespace(final_norm=None))
TOKENS = {"plain": 10.0, "one-word": 20.0}
CANDIDATES = make_candidates(MODEL, [(None, readout) for readout in READOUTS], TOKENS)


def judged(scores, error: float, weight: float = 1.0) -> Scores:
    values = np.array(scores, dtype=float).ravel()
    rng = np.random.default_rng(0)
    draws = values[:, None] + error * rng.normal(size=(len(values), 300))
    return Scores(values, draws, weight=weight)


def decide(
    judgment: Scores, budget=None, suited=None, second: Scores | None = None, lead=None
) -> Outcome:
    suits = dict(zip(READOUTS, suited or [True, True], strict=True))
    judges = SimpleNamespace(eligible=lambda candidate, tokens: suits[candidate.readout])
    candidates = block_unsuited(judges, CANDIDATES, 20, judgment.defined)
    opinion = None if second is None else lambda template: second
    baseline = baseline_of(candidates)
    decision = decide_by_judge(candidates, judgment, baseline, budget, opinion, lead)
    return describe(decision, candidates, judgment, Judges())


def at(outcome: Outcome) -> tuple[int, int]:
    choice = outcome.choice
    return [readout.name for readout in READOUTS].index(str(choice.readout)), choice.layer


def test_costs_are_tokens_times_blocks():
    costs = np.array([candidate.cost for candidate in CANDIDATES]).reshape(2, 5)
    assert np.allclose(costs, [[0.125, 0.25, 0.5, 0.75, 1], [0.25, 0.5, 1, 1.5, 2]])
    anatomy = SimpleNamespace(final_norm=object(), family="llama")
    model = SimpleNamespace(n_blocks=4, anatomy=anatomy)
    filled = make_candidates(model, [(None, Readout(final_norm="raw"))], TOKENS)
    # an export adds a block of zeros
    assert [candidate.cost for candidate in filled] == [0.25, 0.5, 0.75, 1, 1.25]


def test_a_clear_winner_is_taken():
    outcome = decide(judged([[0.1, 0.2, 0.2, 0.2, 0.2], [0.1, 0.2, 0.4, 0.9, 0.7]], 0.001))
    choice, evidence = outcome.choice, outcome.evidence
    assert at(outcome) == (1, 3)
    assert choice.after - choice.before == pytest.approx(0.7)
    assert evidence.interval[0] > 0.65
    assert choice.expected_gain is None  # a judge's score is not in points
    assert not choice.abstained
    first = choice.table.iloc[0]
    assert first[["readout", "layer", "chosen"]].tolist() == [READOUTS[1].name, 3, True]


def test_of_candidates_that_score_practically_the_same_the_cheapest_is_taken():
    """The difference of two candidates has an error of about 0.028 here, so 0.0003 behind is near,
    and 0.002 is not."""
    outcome = decide(judged([[0.1, 0.2, 0.2, 0.2, 0.2], [0.1, 0.8997, 0.898, 0.9, 0.7]], 0.02))
    assert at(outcome) == (1, 1)
    assert outcome.evidence.near == 2
    assert outcome.choice.tied == (1, 2, 3)  # what noise cannot tell from the best is more
    assert outcome.choice.table["tied"].sum() == 3


def test_a_second_opinion_counts_among_the_layers_but_is_no_evidence_of_a_gain():
    judgment = judged([[0.1, 0.2, 0.2, 0.2, 0.2], [0.1, 0.2, 0.88, 0.9, 0.3]], 0.001)
    second = judged([[np.nan] * 5, [0.1, 0.1, 0.8, 0.2, 0.1]], 0.001, SECOND)
    assert at(decide(judgment)) == (1, 3)
    outcome = decide(judgment, second=second)
    assert at(outcome) == (1, 2)
    gain = outcome.choice.after - outcome.choice.before
    assert gain == pytest.approx(0.68)  # as the judge sees it
    weak = judged([[0.1, 0.2, 0.2, 0.2, 0.5], [0.1, 0.2, 0.4, 0.55, 0.4]], 0.2)
    second = judged([[np.nan] * 5, [0.1, 0.2, 0.4, 0.9, 0.4]], 0.001, SECOND)
    for outcome in (decide(weak), decide(weak, second=second)):
        assert outcome.choice.abstained
        assert outcome.evidence.kept_default
        assert at(outcome) == (0, 4)
        assert outcome.evidence.interval == (0, 0)


def test_a_gain_that_is_expected_is_enough_where_the_judge_knows_quality():
    """The best leads by 0.05, 1.8 standard errors of the difference."""
    judgment = judged([[0.1, 0.2, 0.2, 0.2, 0.5], [0.1, 0.2, 0.4, 0.55, 0.4]], 0.02)
    assert at(decide(judgment)) == (0, 4)
    outcome = decide(judgment, lead=LEAD)
    assert at(outcome) == (1, 3)
    assert outcome.evidence.interval[0] < 0 < outcome.evidence.interval[1]
    assert 0.9 < outcome.evidence.certainty < 1
    assert at(decide(judgment, lead=2.5)) == (0, 4)


def test_readouts_that_are_not_suited_are_not_chosen_nor_on_the_front():
    judgment = judged([[0.1, 0.9, 0.9, 0.95, 0.2], [0.1, 0.2, 0.4, 0.8, 0.3]], 0.001)
    assert at(decide(judgment))[0] == 0
    outcome = decide(judgment, suited=[False, True])
    assert at(outcome) == (1, 3)
    table = outcome.choice.table
    assert set(front(table)["readout"]) == {READOUTS[1].name}
    assert not table.loc[table["readout"] == READOUTS[0].name, "eligible"].any()
    # where nothing that is suited can be judged, the rest is
    assert at(decide(judgment, suited=[False, False]))[0] == 0


def test_templates_that_are_tried():
    assert template_names(None) == ["plain", "one-word", "step-by-step"]
    assert template_names(None, labels=True) == ["plain", *names_of("with_labels")]
    assert template_names(["topic", "one-word"]) == ["plain", "topic", "one-word"]


def test_without_an_encoder_sentences_are_read_by_prompts_alone():
    alone = Judges()
    plain, prompt = CANDIDATES[0], CANDIDATES[-1]
    assert not alone.eligible(plain, tokens=20)
    assert alone.eligible(prompt, tokens=20)
    assert alone.eligible(plain, tokens=200)  # a document is no sentence


def test_a_budget_limits_the_layers_and_nothing_to_judge_is_an_error():
    judgment = judged([[0.1, 0.2, 0.2, 0.2, 0.2], [0.1, 0.5, 0.4, 0.9, 0.7]], 0.001)
    assert at(decide(judgment, budget=0.5)) == (1, 1)
    with pytest.raises(LayerscopeError, match="same vector"):
        decide(judged(np.full((2, 5), np.nan), 0.1))
