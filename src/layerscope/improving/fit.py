"""Fit what was chosen on more texts than were judged: a mean to subtract, or a head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from layerscope.core.heads import Head, Ridge, make_target, with_classes
from layerscope.core.readout import Readout
from layerscope.improving.candidates import template_names
from layerscope.improving.heads import MOST_NUMBERS, Teacher
from layerscope.improving.heads import READOUT as HEAD_READOUT
from layerscope.improving.judging import Judges, encode_by_judge
from layerscope.improving.reader import TIMED, Chosen, Encode, Fitted, texts_per_second
from layerscope.improving.request import FitPlan, Run, settle_plan
from layerscope.improving.scoring import SCREEN, Scored
from layerscope.progress import announce
from layerscope.store.folder import config_key
from layerscope.training.distill import MINUTES

SHARE = 0.25
"""The most that reading further texts may cost unless all are wanted, as a share of what the choice
costs."""


@dataclass(frozen=True)
class Lesson:
    """The texts that a head learns from: their plain vectors (texts, D) and its target (texts, K).

    `teacher` names the teachers.
    """

    texts: list[str]
    plain: np.ndarray
    target: np.ndarray
    teacher: str


def fit_mean(run: Run, scored: Scored, readout: Readout, layer: int) -> Fitted:
    """Return the mean of a candidate's vectors over the sample and further texts."""
    count = len(run.sample.texts)
    goal = texts_to_read(run, scored, [Chosen(run.reader, readout, layer)])
    goal = _settle(run, FitPlan(goal)).texts
    mean = scored.candidates.mean(readout, layer)
    if goal > count:
        _announce(run, goal)
        further = list(run.sample.rest(goal))
        vectors = run.reader.vectors(readout, layer, further, run.bar, "centering")
        mean = (vectors.sum(0, dtype=np.float64) + count * mean) / (count + len(further))
        count += len(further)
    return Fitted.of(run.sample, count, Head(mean))


def fit_head(
    run: Run, judges: Judges, scored: Scored, teacher: Teacher, layer: int
) -> tuple[Fitted, tuple[str, ...]]:
    """Return the head of a layer, fitted on the sample and further texts, and notes on it.

    Labels of classes shape the head; pairs do not, since it gains nothing.
    """
    lesson = read_lesson(run, judges, scored, teacher, layer)
    head = Ridge(lesson.plain, lesson.target).head()
    notes: tuple[str, ...] = ()
    labels = run.labels
    if labels is not None and labels.kind == "classification":
        texts = labels.sides[0]
        rows = run.reader.vectors(HEAD_READOUT, layer, texts, run.bar, "labeled texts")
        classes = np.unique(labels.targets, return_inverse=True)[1]
        head = with_classes(head, lesson.plain, rows, classes)
        notes = (
            f"{len(rows)} labels of {classes.max() + 1} classes shape the head; the scores are of "
            "heads without them.",
        )
    return Fitted.of(run.sample, len(lesson.texts), head), notes


def read_lesson(
    run: Run,
    judges: Judges,
    scored: Scored,
    teacher: Teacher,
    layer: int,
    *,
    more_prompts: bool = False,
) -> Lesson:
    """Read the texts that a head at a layer learns from, under its prompt and as plain text.

    With `more_prompts`, further prompts teach as well unless that leaves fewer texts.
    """
    plan = _plan_lesson(run, judges, scored, teacher, layer, more_prompts)
    prompts = teacher.together[: plan.prompts]
    _announce(run, plan.texts)
    texts = [*run.sample.texts, *run.sample.rest(plan.texts)]
    plain = run.reader.vectors(HEAD_READOUT, layer, texts, run.bar, "a head")
    teachers = []
    for prompt in prompts:
        label = f"its teacher, {teacher.describe([prompt])}"
        teachers.append(run.reader.vectors(prompt, teacher.layer, texts, run.bar, label))
    if len(teachers) > 1:  # together they count as much as the encoder
        width = sum(rows.shape[1] for rows in teachers)
        teachers = [make_target(*teachers, width=width)]
    if judges.encoder is not None:
        teachers.append(encode_by_judge(judges.encoder, texts, run.bar))
    return Lesson(texts, plain, make_target(*teachers), teacher.describe(prompts))


def _plan_lesson(
    run: Run,
    judges: Judges,
    scored: Scored,
    teacher: Teacher,
    layer: int,
    more_prompts: bool,
) -> FitPlan:
    """Return how many texts a head learns from, and how many prompts teach it."""
    plain = Chosen(run.reader, HEAD_READOUT, layer)
    prompts = [Chosen(run.reader, prompt, teacher.layer) for prompt in teacher.together]
    count = texts_to_read(run, scored, [plain, prompts[0]], judges.encoder)
    plan = FitPlan(count)
    usual = template_names(None, labels=run.labels is not None)
    if more_prompts and list(run.request.templates) == usual:
        is_free = texts_to_read(run, scored, [plain, *prompts], judges.encoder) == count
        if is_free and count * run.model.width <= MOST_NUMBERS:
            plan = FitPlan(count, len(prompts))
    return _settle(run, plan)


def texts_to_read(
    run: Run, scored: Scored, readings: Sequence[Chosen], encoder: Chosen | None = None
) -> int:
    """Return how many texts a fit reads in several ways, and with the encoder that teaches.

    A limit in minutes decides if there is one. By default the number depends on the texts alone.
    """
    minutes = run.request.time
    if minutes is None and run.request.trains and run.request.center_on == "auto":
        minutes = MINUTES
    sample = run.sample
    drawn = len(sample.texts) + len(sample.more)
    if minutes is not None:
        passes: dict[str, Encode] = {str(i): reading.encode for i, reading in enumerate(readings)}
        if encoder is not None:
            passes["encoder"] = encoder.encode
        speeds = texts_per_second(passes, sample.texts[:TIMED])
        further = 60 * minutes / sum(1 / speed for speed in speeds.values())
    elif run.request.center_on == "auto":
        tokens = run.reader.tokens(
            [reading.readout.template for reading in readings], sample.texts[:SCREEN]
        )
        tokens_per_text = sum(
            tokens[reading.readout.template] * max(reading.layer, 1) / run.model.n_blocks
            for reading in readings
        )
        further = SHARE * scored.spent / tokens_per_text
    else:
        further = drawn if run.request.center_on == "all" else 0
    return min(drawn, len(sample.texts) + int(further))


def _settle(run: Run, plan: FitPlan) -> FitPlan:
    """Return the plan of a stopped run where the number of texts depends on the time."""
    if run.request.time is None and not run.request.trains:
        return plan
    return settle_plan(run.work, config_key(run.config), plan)


def _announce(run: Run, count: int) -> None:
    """Announce how many texts a fit reads."""
    total = run.sample.total
    if count > len(run.sample.texts):
        hint = "" if count == total else " (center_on='all' takes all of them)"
        announce(run.bar, f"fitting on {count:,} of {total:,} texts{hint}")
