"""Improve how a language model is read: the steps in their order, and the values between them.

`start.py` has checked the request and drawn the sample. Then:

1. `make_judges` opens the sources that score candidates.
2. `score_candidates` reads texts and scores every layer under every readout: all templates on a part,
   the best ones on the whole sample.
3. `add_heads` fits a head at every layer, and scores it like the others.
4. `decide_reading` chooses among the candidates.
5. `fit_reading` fits the mean or the head of the choice. `train_blocks` trains a student instead.
6. `finish` measures the result beside today's reading, and exports it.

A search (`search.py`) takes the same steps with two readouts a candidate.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from layerscope.choose import claim_of_any, decide, decide_by_judge
from layerscope.choose.decide import LEAD, limits_by_judge
from layerscope.core.readout import HEAD, Readout
from layerscope.data.records import lack_words
from layerscope.errors import LayerscopeError
from layerscope.improving.candidates import exportable
from layerscope.improving.decision import (
    Outcome,
    baseline_of,
    candidate_costs,
    describe,
    make_candidates,
)
from layerscope.improving.finish import Made, finish, keep_reading, todays_reading
from layerscope.improving.fit import fit_head, fit_mean, read_lesson
from layerscope.improving.heads import READOUT as HEAD_READOUT
from layerscope.improving.judging import Judges, make_judges
from layerscope.improving.reader import Chosen, Fitted, Reader
from layerscope.improving.request import Run, training_folder
from layerscope.improving.result import Improved
from layerscope.improving.scoring import (
    Scored,
    add_heads,
    score_candidates,
    second_opinion,
    student_budget,
)
from layerscope.improving.train import RATE, train_student
from layerscope.improving.words import NO_WORDS, training_outcome
from layerscope.training.distill import MINUTES, TrainingPlan


def improve_texts(run: Run) -> Improved:
    """Choose how a language model is read on texts, and make the model that was chosen."""
    request = run.request
    texts = run.sample.texts
    run.reader.check_differ(texts)
    judges = make_judges(request.judge, run.labels, run.reader, texts)
    if judges.is_model_alone and lack_words(texts):
        if request.trains or request.budget is not None:
            raise LayerscopeError(f"train= and budget= need a judge, and {NO_WORDS}")
        return keep_reading(run, NO_WORDS, Readout())
    scored = add_heads(run, judges, score_candidates(run, judges))
    if request.trains:
        result = train_blocks(run, judges, scored)
        if result.training is not None:
            return finish(run, judges, scored, result)
        scored = replace(scored, notes=(*scored.notes, *result.notes))
    result = fit_reading(run, judges, scored, decide_reading(run, judges, scored))
    return finish(run, judges, scored, result)


def decide_reading(run: Run, judges: Judges, scored: Scored) -> Outcome:
    """Choose a candidate that can be exported."""
    readouts = scored.candidates.readouts
    layers = scored.candidates.layers
    allowed = exportable(run.model, readouts, layers, run.request.servers)
    scores = scored.total.where(allowed.ravel())
    costs = candidate_costs(run.reader, readouts, scored.tokens)
    budget = run.request.budget
    usable = scores.defined & (costs.ravel() <= (budget or np.inf) + 1e-9)
    suited = judges.eligible(readouts, scored.tokens["plain"])
    candidates = make_candidates(readouts, layers, costs, suited, usable)
    second = None
    if judges.takes_second_opinion:
        second = partial(second_opinion, run, scored.candidates)
    # the model's own consistency has no measure of quality: its gain has to be shown
    lead = None if judges.is_model_alone else LEAD
    decision = decide_by_judge(candidates, scores, baseline_of(candidates), budget, second, lead)
    return describe(decision, candidates, scores, judges)


def fit_reading(run: Run, judges: Judges, scored: Scored, outcome: Outcome) -> Made:
    """Fit the mean or the head of a choice."""
    choice = outcome.choice
    # parsing the name would strip a pattern of the user's own
    readouts = {readout.name: readout for readout in scored.candidates.readouts}
    readout = readouts[str(choice.readout)]
    chosen = Chosen(run.reader, readout, choice.layer)
    heads = scored.candidates.heads
    if readout.centering == "none":
        return Made(outcome, chosen)
    if readout.centering != HEAD or heads is None:
        fitted = fit_mean(run, scored, readout, choice.layer)
        return Made(outcome, replace(chosen, fitted=fitted))
    fitted, notes = fit_head(run, judges, scored, heads.teacher, choice.layer)
    return Made(outcome, replace(chosen, fitted=fitted), heads.teacher.describe(), notes=notes)


def train_blocks(run: Run, judges: Judges, scored: Scored) -> Made:
    """Train a student of the blocks below a head; without `training` if it is no better."""
    heads = scored.candidates.heads
    assert heads is not None
    request = run.request
    outcome = decide_blocks(run, judges, scored)
    layer = outcome.choice.layer
    lesson = read_lesson(run, judges, scored, heads.teacher, layer, more_prompts=True)
    with training_folder(run.work) as folder:
        minutes = request.time or MINUTES
        plan = TrainingPlan(
            folder, run.model.device, request.seed, minutes, RATE, settings=request.train or {}
        )
        student = train_student(
            run.model,
            layer,
            lesson,
            todays_reading(run).encode,
            plan,
            max_length=run.reader.max_length,
            bar=run.bar,
            on_rows=run.on_rows,
        )
    training = student.training
    reader = Reader(
        student.model, run.reader.store, run.reader.max_length, batch_size=run.reader.batch_size
    )
    fitted = Fitted.of(run.sample, training.texts, student.head)
    chosen = Chosen(reader, HEAD_READOUT, layer, fitted)
    if training.is_better:
        return Made(outcome, chosen, training.teacher, training)
    note = (
        "training did not help, and what was best before it is handed over: "
        f"{training_outcome(training)}."
    )
    return Made(outcome, chosen, notes=(note,))


def decide_blocks(run: Run, judges: Judges, scored: Scored) -> Outcome:
    """Choose the head on as many blocks as the budget of a student allows."""
    readouts = scored.candidates.readouts
    layers = scored.candidates.layers
    budget = student_budget(run)
    costs = candidate_costs(run.reader, readouts, scored.tokens)
    candidates = make_candidates(readouts, layers, costs)
    is_head = [readout.centering == HEAD for readout in readouts]
    has_blocks = np.asarray(layers) > 0
    allowed = np.outer(is_head, has_blocks).ravel() & (costs.ravel() <= budget + 1e-9)
    allowed &= scored.total.defined
    if not allowed.any():
        raise LayerscopeError("no layer within the budget can be trained.")
    largest = scored.total.where(allowed & (costs.ravel() == costs.ravel()[allowed].max()))
    decision = decide(
        candidates,
        [largest],
        baseline_of(candidates),
        limits_by_judge(budget, stay=False),
        claim_of_any(scored.total),
    )
    return describe(decision, candidates, scored.total, judges)
