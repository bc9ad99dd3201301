"""Improve how a language model is read: the steps in their order, and the values between them.

`start.py` has checked the request and drawn the sample. Then:

1. `make_judges` opens the sources that score candidates.
2. `read_candidates` encodes texts: all templates on a part, the best ones on the whole sample.
3. `score_candidates` scores every layer under every readout.
4. `add_heads` fits a head at every layer, and scores it like the others.
5. `decide_reading` chooses among the candidates.
6. `fit_reading` fits the mean or the head of the choice. `train_blocks` trains a student instead.
7. `finish` measures the result beside today's reading, and exports it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from layerscope.choose import claim_of_any, decide, decide_by_judge
from layerscope.choose.choice import Choice
from layerscope.choose.decide import limits_by_judge
from layerscope.core.readout import HEAD, Readout
from layerscope.data.filters import lack_words
from layerscope.errors import LayerscopeError
from layerscope.improving.candidates import exportable, find_readout
from layerscope.improving.choose import as_choice, baseline_of, make_candidates
from layerscope.improving.chosen import Chosen
from layerscope.improving.encoder import encoder_readout
from layerscope.improving.finish import Made, finish, keep_reading, todays_reading
from layerscope.improving.fit import Fitted, fit_head, fit_mean, read_lesson
from layerscope.improving.heads import READOUT as HEAD_READOUT
from layerscope.improving.judging import Judges, make_judges
from layerscope.improving.request import Run
from layerscope.improving.result import Improved
from layerscope.improving.resume import training_folder
from layerscope.improving.sample import Reader
from layerscope.improving.scoring import (
    Scored,
    add_heads,
    check_student_budget,
    read_candidates,
    score_candidates,
    second_opinion,
)
from layerscope.improving.train import train_student
from layerscope.improving.words import NO_WORDS, kept_reason, training_outcome
from layerscope.training.distill import MINUTES


def improve_texts(run: Run) -> Improved:
    """Choose how a language model is read on texts, and make the model that was chosen."""
    request = run.request
    if run.model.identity.get("sentence_encoder"):
        return keep_encoder(run)
    run.reader.check_differ(run.sample.texts)
    judges = make_judges(request.judge, run.labels, run.model, run.sample.texts)
    if judges.is_model_alone and lack_words(run.sample.texts):
        return keep_default(run)
    scored = score_candidates(run, judges, read_candidates(run, judges))
    scored = add_heads(run, judges, scored)
    made = train_blocks(run, judges, scored) if request.trains else None
    if made is None or made.training is None:
        notes = () if made is None else made.notes
        made = fit_reading(run, judges, scored, decide_reading(run, judges, scored))
        made = replace(made, notes=(*notes, *made.notes))
    return finish(run, judges, scored, made)


def keep_encoder(run: Run) -> Improved:
    """Return a sentence encoder as it is: it was trained for its own reading."""
    if run.request.trains:
        raise LayerscopeError(
            f"{run.model.name} is a sentence encoder, which improve does not train. Leave out "
            "train=."
        )
    return keep_reading(run, kept_reason(run.model), encoder_readout(run))


def keep_default(run: Run) -> Improved:
    """Return the model as it is: it cannot judge itself on texts without words."""
    if run.request.trains or run.request.budget is not None:
        raise LayerscopeError(f"train= and budget= need a judge, and {NO_WORDS}")
    return keep_reading(run, NO_WORDS, Readout())


def decide_reading(run: Run, judges: Judges, scored: Scored) -> Choice:
    """Choose a candidate that can be exported."""
    candidates = scored.candidates
    readouts = candidates.readouts
    allowed = exportable(run.model, readouts, candidates.layers, run.request.servers)
    scores = scored.total.where(allowed.ravel())
    costs = scored.read.cost.relative(run.reader, readouts)
    budget = run.request.budget
    usable = scores.defined & (costs.ravel() <= (budget or np.inf) + 1e-9)
    suited = judges.eligible(readouts, scored.read.cost.tokens["plain"])
    options = make_candidates(readouts, candidates.layers, costs, suited, usable)
    second = partial(second_opinion, run, candidates) if judges.takes_second_opinion else None
    decision = decide_by_judge(options, scores, baseline_of(options), budget, second)
    return as_choice(decision, options, scores)


def fit_reading(run: Run, judges: Judges, scored: Scored, choice: Choice) -> Made:
    """Fit the mean or the head of a choice."""
    readout = find_readout(scored.candidates.readouts, choice.readout)
    cost = scored.read.cost
    chosen = Chosen(run.model, run.reader, readout, choice.layer)
    heads = scored.candidates.heads
    if readout.centering == "none":
        return Made(choice, chosen)
    if readout.centering != HEAD or heads is None:
        fitted = fit_mean(run, scored.candidates, cost, readout, choice.layer)
        return Made(choice, replace(chosen, fitted=fitted))
    fitted, notes = fit_head(run, judges, cost, heads.teacher, choice.layer)
    return Made(choice, replace(chosen, fitted=fitted), heads.teacher.describe(), notes=notes)


def train_blocks(run: Run, judges: Judges, scored: Scored) -> Made:
    """Train a student of the blocks below a head; without `training` if it is no better."""
    heads = scored.candidates.heads
    assert heads is not None
    choice = decide_blocks(run, scored)
    layer = choice.layer
    lesson = read_lesson(run, judges, scored.read.cost, heads.teacher, layer, more_prompts=True)
    with training_folder(run.work) as folder:
        student = train_student(
            run.model,
            layer,
            lesson.texts,
            lesson.plain,
            lesson.target,
            todays_reading(run).encode,
            teacher=lesson.teacher,
            folder=folder,
            max_length=run.reader.max_length,
            seed=run.request.seed,
            minutes=run.request.time or MINUTES,
            settings=run.request.train,
            on_rows=run.on_rows,
            bar=run.bar,
        )
    training = student.training
    reader = Reader(
        student.model, run.reader.store, run.reader.max_length, batch_size=run.reader.batch_size
    )
    fitted = Fitted.of(run.sample, training.texts, student.head)
    chosen = Chosen(student.model, reader, HEAD_READOUT, layer, fitted)
    if training.is_better:
        return Made(choice, chosen, training.teacher, training)
    note = (
        "training did not help, and what was best before it is handed over: "
        f"{training_outcome(training)}."
    )
    return Made(choice, chosen, notes=(note,))


def decide_blocks(run: Run, scored: Scored) -> Choice:
    """Choose the head on as many blocks as the budget of a student allows."""
    candidates = scored.candidates
    readouts = candidates.readouts
    budget = check_student_budget(run)
    options = make_candidates(
        readouts, candidates.layers, scored.read.cost.relative(run.reader, readouts)
    )
    costs = np.array([option.cost for option in options])
    is_head = [readout.centering == HEAD for readout in readouts]
    has_blocks = np.asarray(candidates.layers) > 0
    allowed = np.outer(is_head, has_blocks).ravel() & (costs <= budget + 1e-9)
    allowed &= scored.total.defined
    if not allowed.any():
        raise LayerscopeError("no layer within the budget can be trained.")
    largest = scored.total.where(allowed & (costs == costs[allowed].max()))
    limits = limits_by_judge(budget, stay=False)
    make_claim = claim_of_any(scored.total)
    decision = decide(options, [largest], baseline_of(options), limits, make_claim)
    return as_choice(decision, options, scored.total)
