"""Fit what was chosen on more texts than were judged: a mean to subtract, or a head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from layerscope.core.heads import Head, Ridge, make_target, with_classes
from layerscope.core.readout import Readout
from layerscope.improving.candidates import StoredCandidates, template_names
from layerscope.improving.choose import SCREEN
from layerscope.improving.cost import ReadingCost
from layerscope.improving.heads import MOST_NUMBERS, Teacher
from layerscope.improving.heads import READOUT as HEAD_READOUT
from layerscope.improving.judging import Judges
from layerscope.improving.request import Run
from layerscope.improving.resume import FitPlan, settle_plan
from layerscope.improving.sample import Sample, encoder_vectors
from layerscope.improving.speed import encoder_seconds
from layerscope.progress import announce
from layerscope.training.distill import MINUTES

SHARE = 0.25
"""The most that reading further texts may cost unless all are wanted, as a share of what the choice
costs."""

MOST_FITTED = 50_000
"""The most texts that are fitted on: their vectors are held in memory, and more add little."""


@dataclass(frozen=True)
class Fitted:
    """A mean to subtract or a head to apply, fitted on `texts` of the `total` distinct texts."""

    head: Head
    texts: int
    total: int

    @classmethod
    def of(cls, sample: Sample, texts: int, head: Head) -> Self:
        """Record in words which texts of a sample a head was fitted on."""
        words = f"all {texts:,} texts"
        if texts != sample.total:
            words = f"{texts:,} of {sample.total:,} texts (drawn at random)"
        return cls(replace(head, fitted_on=f"{words} of {sample.name}"), texts, sample.total)


@dataclass(frozen=True)
class Lesson:
    """The texts that a head learns from: their plain vectors (texts, D) and its teachers' vectors.

    `teacher` names the teachers.
    """

    texts: list[str]
    plain: np.ndarray
    teachers: list[np.ndarray]
    teacher: str

    @property
    def target(self) -> np.ndarray:
        """Return the teachers' vectors as one (texts, K)."""
        return make_target(*self.teachers)


def encode_by_judge(run: Run, judges: Judges, texts: Sequence[str]) -> np.ndarray | None:
    """Return the judging encoder's vectors of texts; None where no encoder judges."""
    if judges.encoder is None:
        return None
    reader = run.reader
    return encoder_vectors(judges.encoder, reader.store, texts, judges.encoder_readout, run.bar)


def fit_mean(
    run: Run, candidates: StoredCandidates, cost: ReadingCost, readout: Readout, layer: int
) -> Fitted:
    """Return the mean of a candidate's vectors over the sample and further texts."""
    sample = run.sample
    judged = len(sample.texts)
    count = texts_to_read(run, cost, [(readout.template, layer)])
    count = _settle(run, FitPlan(count)).texts
    mean = candidates.mean(readout, layer)
    if count > judged:
        _announce(run, count)
        further = list(sample.rest(count))
        vectors = run.reader.vectors_at(readout, layer, further, run.bar, "centering")
        mean = (vectors.sum(0, dtype=np.float64) + judged * mean) / (judged + len(further))
        judged += len(further)
    return Fitted.of(sample, judged, Head(mean))


def fit_head(
    run: Run, judges: Judges, cost: ReadingCost, teacher: Teacher, layer: int
) -> tuple[Fitted, tuple[str, ...]]:
    """Return the head of a layer, fitted on the sample and further texts, and notes on it.

    Labels of classes shape the head; pairs do not, since it gains nothing.
    """
    lesson = read_lesson(run, judges, cost, teacher, layer)
    head = Ridge(lesson.plain, lesson.target).head()
    notes: tuple[str, ...] = ()
    labels = run.labels
    if labels is not None and labels.kind == "classification":
        texts = labels.sides[0]
        rows = run.reader.vectors_at(HEAD_READOUT, layer, texts, run.bar, "labeled texts")
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
    cost: ReadingCost,
    teacher: Teacher,
    layer: int,
    *,
    more_prompts: bool = False,
) -> Lesson:
    """Read the texts that a head at a layer learns from, under its prompt and as plain text.

    With `more_prompts`, further prompts teach as well unless that leaves fewer texts.
    """
    plan, prompts = _plan_lesson(run, judges, cost, teacher, layer, more_prompts)
    _announce(run, plan.texts)
    texts = [*run.sample.texts, *run.sample.rest(plan.texts)]
    plain = run.reader.vectors_at(HEAD_READOUT, layer, texts, run.bar, "a head")
    teachers = []
    for prompt in prompts:
        label = f"its teacher, {teacher.describe([prompt])}"
        teachers.append(run.reader.vectors_at(prompt, teacher.layer, texts, run.bar, label))
    if len(teachers) > 1:  # together they count as much as the encoder
        width = sum(rows.shape[1] for rows in teachers)
        teachers = [make_target(*teachers, width=width)]
    encoded = encode_by_judge(run, judges, texts)
    if encoded is not None:
        teachers.append(encoded)
    return Lesson(texts, plain, teachers, teacher.describe(prompts))


def _plan_lesson(
    run: Run, judges: Judges, cost: ReadingCost, teacher: Teacher, layer: int, more_prompts: bool
) -> tuple[FitPlan, list[Readout]]:
    """Return how many texts a head learns from, and the prompts that teach it."""
    own = (HEAD_READOUT.template, layer)
    count = texts_to_read(run, cost, [own, (teacher.readout.template, teacher.layer)], judges)
    plan = FitPlan(count)
    usual = template_names(None, labels=run.labels is not None)
    if more_prompts and list(run.request.templates) == usual:
        prompts = teacher.together
        cost = cost.with_prompts(run.reader, prompts, run.sample.texts[:SCREEN])
        parts = [own, *((prompt.template, teacher.layer) for prompt in prompts)]
        is_free = texts_to_read(run, cost, parts, judges) == count
        if is_free and count * run.model.width <= MOST_NUMBERS:
            plan = FitPlan(count, len(prompts))
    plan = _settle(run, plan)
    return plan, teacher.together[: plan.prompts]


def texts_to_read(
    run: Run,
    cost: ReadingCost,
    parts: Sequence[tuple[str, int]],
    judges: Judges | None = None,
) -> int:
    """Return how many texts a fit reads under templates, each up to a layer.

    `judges` are given where their encoder teaches as well, and takes its time.
    """
    request = run.request
    each, computed = (
        sum(tokens[name] * max(layer, 1) / run.model.n_blocks for name, layer in parts)
        for tokens in (cost.tokens, cost.computed)
    )
    minutes = request.time
    if minutes is None and request.trains and request.center_on == "auto":
        minutes = MINUTES
    allowed = None
    if minutes is not None:
        if judges is not None:
            computed += encoder_seconds(judges, run.sample.texts) / cost.seconds
        allowed = 60 * minutes / cost.seconds * each / computed
    return texts_to_fit_on(request.center_on, run.sample, cost.spent, each, allowed)


def texts_to_fit_on(
    center_on: str, sample: Sample, spent: float, each: float, allowed: float | None = None
) -> int:
    """Return how many texts a mean or a head is fitted on: the sample, and others if wanted.

    `spent` is what the choice reads, `each` what one more text takes, and `allowed` what others may
    take where a time is set, all in tokens. Without a time the number depends on the texts alone,
    not on the speed of the machine.
    """
    judged = len(sample.texts)
    drawn = judged + len(sample.more)
    most = sample.total if sample.total <= MOST_FITTED else min(MOST_FITTED, drawn)
    if allowed is not None:
        if allowed >= each * (sample.total - judged):
            return most
        return min(most, drawn, judged + int(allowed / each))
    if center_on == "sample":
        return judged
    if center_on == "all":
        return most
    return min(most, drawn, judged + int(SHARE * spent / each))


def _settle(run: Run, plan: FitPlan) -> FitPlan:
    """Return the plan of a stopped run where the number of texts depends on the time."""
    if run.request.time is None and not run.request.trains:
        return plan
    return settle_plan(run.work, run.key, plan)


def _announce(run: Run, count: int) -> None:
    """Announce how many texts a fit reads."""
    sample = run.sample
    if count > len(sample.texts):
        hint = "" if count == sample.total else " (center_on='all' takes all of them)"
        announce(run.bar, f"fitting on {count:,} of {sample.total:,} texts{hint}")
