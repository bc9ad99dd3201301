"""Fit what was chosen: a mean to subtract, a head, or the blocks below a head.

A prompt teaches a head once: its vectors of the texts are the target of a linear map from the plain
reading of a layer. Afterwards a text costs one short pass without a prompt. An encoder that judges
teaches the head that is exported as well, but not the heads that it judges: it would favor its own
pupils. With training, the blocks below the head learn from the same teachers, by the trainer of
sentence-transformers.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from layerscope.choose import Candidate
from layerscope.choose.judges import TEXTS, Neighborhoods, similarities
from layerscope.core.files import read_json
from layerscope.core.heads import LEAST_TEXTS, Head, Ridge, make_target, unit, with_classes
from layerscope.core.readout import Readout
from layerscope.core.scores import Scores
from layerscope.exporting.draft import ExportRequest, verification_texts
from layerscope.exporting.pipeline import load_folder, write_draft
from layerscope.improving.candidates import (
    QUERIES,
    Chosen,
    Encode,
    Heads,
    Reader,
    Run,
    StoredCandidates,
    Teacher,
    baseline_of,
    is_constant,
    seconds_per_text,
    template_names,
    template_of,
)
from layerscope.improving.judging import Judges, Scored, encode_by_judge, encode_sides
from layerscope.improving.result import Outcome, Training
from layerscope.models import LoadedModel, wrap
from layerscope.models.settings import quiet
from layerscope.progress import OnRows, Progress, announce
from layerscope.store import atomic
from layerscope.store.folder import config_key
from layerscope.training.distill import MINUTES, TrainingPlan, embed_by_length, train

PLAN = "plan.json"
_TRAINING = "training"

TOGETHER = ("one-word", "topic", "intent")
MORE_PROMPTS = 2
MOST_NUMBERS = 10**8
"""Two of the prompts `TOGETHER` teach a student beside the best one, unless texts × width is more
(`benchmarks/results/heads.md`)."""

CHECKED = 500
"""Texts that a student is compared on, at most; and at most an eighth of all. As many say when to
stop."""

RATE, HEAD_RATE = 4e-4, 0.02
"""The rates of learning: of the blocks from a whole batch (smaller ones: less, by the root), and of
the head, as a share of the size of its numbers. At twice the rate, one of two models unlearned."""

SHARPNESS = 0.05
"""Similarities are divided by this before they become the shares of a text's neighbors."""

SQUARES = 10.0
"""The weight of the squared difference of similarities, beside the divergence of those shares."""


@dataclass(frozen=True)
class FittedChoice:
    """A choice and the model that is read accordingly, with its mean, head or trained blocks.

    `teacher` names the prompt that taught a head; `training` compares a student with its head.
    """

    outcome: Outcome
    chosen: Chosen
    teacher: str | None = None
    training: Training | None = None
    notes: tuple[str, ...] = ()


# Heads among the candidates


def find_teacher(scores: Scores, candidates: Sequence[Candidate], encoder: str) -> Teacher | None:
    """Return the centered prompt with the best score; None if none beats the baseline."""
    is_prompt = [
        template_of(candidate) != "plain" and candidate.readout_name.endswith("/corpus")
        for candidate in candidates
    ]
    allowed = scores.defined & np.array(is_prompt)
    if not allowed.any():
        return None
    best = scores.best(allowed)
    if not scores.gain(best, baseline_of(candidates)).low > 0:
        return None
    return Teacher(candidates[best], encoder)


def fit_heads(
    teacher: Teacher, candidates: StoredCandidates, plain: Sequence[Candidate]
) -> Heads | None:
    """Return a head for each plain candidate; None for too few texts, or if all seem the same."""
    target = make_target(candidates.taught(teacher.candidate))
    if len(target) < LEAST_TEXTS or not np.isfinite(target).all() or is_constant(target):
        return None
    return Heads(teacher, [candidates.taught(candidate) for candidate in plain], target)


# The mean or the head of a choice


def fit_reading(run: Run, judges: Judges, scored: Scored, outcome: Outcome) -> FittedChoice:
    """Fit the mean or the head of a choice, on the sample and further texts."""
    candidate = outcome.candidate
    candidates = scored.candidates
    readout = candidate.readout
    assert readout is not None
    chosen = Chosen(run.reader, readout, candidate.layer)
    heads = candidates.heads if candidate.transform == "head" else None
    if candidates.is_search:
        return _fit_sides(run, judges, candidates, outcome, chosen)
    if heads is not None:
        head, notes = _fit_head(run, judges, heads.teacher, candidate.layer)
        return FittedChoice(
            outcome, replace(chosen, head=head), heads.teacher.describe(), notes=notes
        )
    if readout.centering == "corpus":
        chosen = replace(chosen, head=_fit_mean(run, candidates, chosen, candidate))
    return FittedChoice(outcome, chosen)


def _fit_mean(run: Run, candidates: StoredCandidates, chosen: Chosen, candidate: Candidate) -> Head:
    """Return the mean of a candidate's vectors over the sample and further texts."""
    sample = run.sample
    count = len(sample.texts)
    goal = texts_to_read(run, [chosen])
    mean = candidates.mean(candidate)
    if goal > count:
        _announce(run, goal)
        further = sample.first(goal)[count:]
        vectors = run.reader.vectors(chosen.readout, chosen.layer, further, run.bar, "centering")
        mean = (vectors.sum(0, dtype=np.float64) + count * mean) / (count + len(further))
        count += len(further)
    return Head(mean, fitted_on=sample.count_words(count))


def _fit_head(
    run: Run, judges: Judges, teacher: Teacher, layer: int
) -> tuple[Head, tuple[str, ...]]:
    """Return the head of a layer, fitted on the sample and further texts, and notes on it.

    Labels of classes shape the head; pairs do not, since it gains nothing.
    """
    lesson = read_lesson(run, judges, teacher, layer)
    head = Ridge(lesson.plain, lesson.target).head()
    notes: tuple[str, ...] = ()
    labels = run.labels
    if labels is not None and labels.kind == "classification":
        texts = labels.sides[0]
        rows = run.reader.vectors(Readout(), layer, texts, run.bar, "labeled texts")
        classes = np.unique(labels.targets, return_inverse=True)[1]
        head = with_classes(head, lesson.plain, rows, classes)
        notes = (
            f"{len(rows)} labels of {classes.max() + 1} classes shape the head; the scores are of "
            "heads without them.",
        )
    return replace(head, fitted_on=run.sample.count_words(len(lesson.texts))), notes


def _fit_sides(
    run: Run, judges: Judges, candidates: StoredCandidates, outcome: Outcome, chosen: Chosen
) -> FittedChoice:
    """Fit what is done to the vectors of queries and of documents: a mean each, and one head."""
    search = run.search
    candidate = outcome.candidate
    query = candidate.query
    assert search is not None
    assert query is not None
    if outcome.evidence.kept_default:
        return FittedChoice(outcome, chosen)
    sides = {QUERIES: replace(chosen, readout=query), TEXTS: chosen}
    matrix = None
    teacher = None
    if candidate.transform == "head" and candidates.heads is not None:
        heads = candidates.heads
        teacher = heads.teacher.describe()
        teachers = [candidates.taught(heads.teacher.candidate)]
        if judges.encoder is not None:
            encoded = encode_sides(judges.encoder, search, run.bar)
            teachers.append(np.concatenate([rows - rows.mean(0) for rows in encoded]))
        matrix = Ridge(heads.raw[candidate.layer], make_target(*teachers)).head().matrix
    if matrix is not None or chosen.readout.centering == "corpus":
        for view, kind in ((QUERIES, "queries"), (TEXTS, "documents")):
            name = search.facts[kind]["name"]
            words = f"{len(candidates.views[view]):,} {kind} of {name}"
            head = Head(candidates.mean(candidate, view), matrix, words)
            sides[view] = replace(sides[view], head=head)
    return FittedChoice(outcome, replace(sides[TEXTS], query=sides[QUERIES]), teacher)


# The texts that a head or a student learns from


@dataclass(frozen=True)
class Lesson:
    """The texts that a head learns from: their plain vectors (texts, D) and its target (texts, K).

    `teacher` names the teachers.
    """

    texts: list[str]
    plain: np.ndarray
    target: np.ndarray
    teacher: str


def read_lesson(run: Run, judges: Judges, teacher: Teacher, layer: int) -> Lesson:
    """Read the texts that a head at a layer learns from, under its prompt and as plain text.

    Further prompts teach a student as well, unless that leaves fewer texts.
    """
    prompts = teaching_prompts(run, teacher)
    place = teacher.candidate.layer
    readings = [Chosen(run.reader, Readout(), layer)]
    readings += [Chosen(run.reader, prompt, place) for prompt in prompts]
    count = texts_to_read(run, readings[:2], judges.encoder)
    if len(prompts) > 1:
        is_free = texts_to_read(run, readings, judges.encoder) == count
        if not is_free or count * run.model.width > MOST_NUMBERS:
            prompts = prompts[:1]
    if run.request.train is not None:
        key = config_key(run.config)
        count, used = settle_plan(run.work, key, count, len(prompts))
        prompts = teaching_prompts(run, teacher)[:used]
    _announce(run, count)
    texts = run.sample.first(count)
    plain = run.reader.vectors(Readout(), layer, texts, run.bar, "a head")
    teachers = []
    for prompt in prompts:
        label = f"its teacher, {teacher.describe([prompt])}"
        teachers.append(run.reader.vectors(prompt, place, texts, run.bar, label))
    if len(teachers) > 1:  # together they count as much as the encoder
        width = sum(rows.shape[1] for rows in teachers)
        teachers = [make_target(*teachers, width=width)]
    if judges.encoder is not None:
        teachers.append(encode_by_judge(judges.encoder, texts, run.bar))
    return Lesson(texts, plain, make_target(*teachers), teacher.describe(prompts))


def teaching_prompts(run: Run, teacher: Teacher) -> list[Readout]:
    """Return the teacher's readout, for a student with two further prompts at the last token."""
    readout = teacher.candidate.readout
    assert readout is not None
    usual = template_names(None, labels=run.labels is not None)
    is_usual = list(run.request.templates) == usual
    if run.request.train is None or readout.pooling != "last" or not is_usual:
        return [readout]
    names = [name for name in TOGETHER if name != readout.template]
    return [readout, *(replace(readout, template=name) for name in names[:MORE_PROMPTS])]


def texts_to_read(run: Run, readings: Sequence[Chosen], encoder: Chosen | None = None) -> int:
    """Return how many texts a fit reads in several ways, and with the encoder that teaches.

    The minutes of a training decide; without one it is half as many again as are judged.
    """
    request = run.request
    sample = run.sample
    count = len(sample.texts)
    drawn = count + len(sample.further)
    if request.center_on != "auto":
        return drawn if request.center_on == "all" else count
    further = count // 2
    if request.train is not None:
        passes = [*readings, encoder] if encoder is not None else readings
        seconds = sum(seconds_per_text(reading.encode, sample.texts) for reading in passes)
        further = int(60 * (request.time or MINUTES) / seconds)
    return min(drawn, count + further)


def _announce(run: Run, count: int) -> None:
    """Announce how many texts a fit reads."""
    total = run.sample.total
    if count > len(run.sample.texts):
        hint = "" if count == total else " (center_on='all' takes all of them)"
        announce(run.bar, f"fitting on {count:,} of {total:,} texts{hint}")


def settle_plan(work: Path | None, key: str, texts: int, prompts: int) -> tuple[int, int]:
    """Return how many texts and prompts a stopped run of the same key began with, or record these.

    A limit in minutes allows another number of texts each time it is estimated.
    """
    if work is None:
        return texts, prompts
    file = work / PLAN
    recorded = read_json(file) if file.is_file() else {}
    if recorded.get("key") == key:
        return int(recorded["texts"]), int(recorded["prompts"])
    clear(work)
    atomic.write_json(file, {"key": key, "texts": texts, "prompts": prompts})
    return texts, prompts


def clear(work: Path) -> None:
    """Remove the unfinished work of a run."""
    (work / PLAN).unlink(missing_ok=True)
    shutil.rmtree(work / _TRAINING, ignore_errors=True)


@contextmanager
def working_folder(out: Path | None) -> Iterator[Path | None]:
    """Be the only process that improves into `out`; yield the folder for unfinished work."""
    if out is None:
        yield None
        return
    with atomic.lock_beside(out.resolve(), "improving") as work:
        yield work
        clear(work)


@contextmanager
def training_folder(work: Path | None) -> Iterator[Path]:
    """Yield the folder for the checkpoints of a training."""
    if work is None:
        with tempfile.TemporaryDirectory(prefix="layerscope-") as folder:
            yield Path(folder)
        return
    place = work / _TRAINING
    place.mkdir(exist_ok=True)
    yield place


# Students


@dataclass(frozen=True)
class Student:
    """The trained blocks and their head, with the comparison."""

    model: LoadedModel
    head: Head
    training: Training


def train_blocks(
    run: Run, judges: Judges, scored: Scored, outcome: Outcome, baseline: Chosen
) -> FittedChoice:
    """Train a student of the blocks below a head."""
    heads = scored.candidates.heads
    assert heads is not None
    request = run.request
    layer = outcome.candidate.layer
    lesson = read_lesson(run, judges, heads.teacher, layer)
    with training_folder(run.work) as folder:
        minutes = request.time or MINUTES
        plan = TrainingPlan(
            folder, run.model.device, request.seed, minutes, RATE, settings=request.train or {}
        )
        student = train_student(
            run.model,
            layer,
            lesson,
            baseline.encode,
            plan,
            max_length=run.reader.max_length,
            bar=run.bar,
            on_rows=run.on_rows,
        )
    training = student.training
    reader = Reader(
        student.model, run.reader.store, run.reader.max_length, batch_size=run.reader.batch_size
    )
    head = replace(student.head, fitted_on=run.sample.count_words(training.texts))
    return FittedChoice(
        outcome, Chosen(reader, Readout(), layer, head), training.teacher, training=training
    )


def train_student(
    model: LoadedModel,
    layer: int,
    lesson: Lesson,
    baseline: Encode,
    plan: TrainingPlan,
    *,
    max_length: int,
    bar: Progress,
    on_rows: OnRows | None = None,
) -> Student:
    """Train the blocks below `layer` until similarities of texts agree with those of the target.

    `baseline` encodes texts as the user has it now. A training that was stopped resumes from the
    checkpoints in the folder of the plan.
    """
    order = np.random.default_rng([plan.seed, 7]).permutation(len(lesson.texts))
    aside = min(CHECKED, len(order) // 8)
    checked, watched, learned = np.split(order, [aside, 2 * aside])
    head = Ridge(lesson.plain[learned], lesson.target[learned]).head()
    start = plan.folder / "start"
    shutil.rmtree(start, ignore_errors=True)
    shown = tuple(verification_texts(brief=True))
    request = ExportRequest(
        model, layer, Readout(), shown, max_length=max_length, unit=True, head=head
    )
    write_draft(request, start)
    student = _load(start).float().to(model.device)
    rates = {
        rf"linear\.{name}$": HEAD_RATE * float(weight.detach().square().mean().sqrt())
        for name, weight in student[2].linear.named_parameters()
    }

    def texts_at(places: np.ndarray) -> list[str]:
        return [lesson.texts[i] for i in places]

    def measure(encoder: Any, places: np.ndarray = watched) -> np.ndarray:
        vectors = encoder.encode(texts_at(places), show_progress_bar=False)
        return agreement(vectors, lesson.target[places])

    state = train(
        student,
        replace(plan, rates=rates),
        texts_at(learned),
        SimilarityLoss(student, unit(lesson.target[learned]).astype(np.float32)),
        lambda encoder: float(measure(encoder).mean()),
        bar=bar,
        on_rows=on_rows,
    )
    scores = []
    for encoder in (_load(start), student):  # in the precision in which it is handed over
        encoder.to(device=model.device, dtype=next(model.module.parameters()).dtype).eval()
        scores.append(measure(encoder, checked))
    before, after = scores
    baseline_agreement = agreement(baseline(texts_at(checked)), lesson.target[checked])
    training = Training(
        teacher=lesson.teacher,
        blocks=layer,
        steps=state.best_global_step or state.global_step,
        texts=len(learned),
        seed=plan.seed,
        checked=len(checked),
        head=float(before.mean()),
        student=float(after.mean()),
        baseline=float(baseline_agreement.mean()),
        over_head=_interval(after - before),
        over_baseline=_interval(after - baseline_agreement),
    )
    return Student(_as_loaded(student, model, training), head_of(student), training)


def similarity_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return how much the similarities of vectors (n, D) differ from the teacher's (n, K).

    For every text, the divergence of how near the others are, the nearest counting most; and the
    mean squared difference of all similarities. Nothing is centered on the batch: vectors that are
    right only without their mean would be wrong for a user.
    """
    student_cosines = _similarities_to_others(student)
    teacher_cosines = _similarities_to_others(teacher)
    goal = nn.functional.log_softmax(teacher_cosines / SHARPNESS, dim=-1)
    shares = nn.functional.log_softmax(student_cosines / SHARPNESS, dim=-1)
    divergence = (goal.exp() * (goal - shares)).sum(-1).mean()
    return divergence + SQUARES * (student_cosines - teacher_cosines).square().mean()


def _similarities_to_others(vectors: Tensor) -> Tensor:
    """Return the cosines (n, n − 1) of every row with the others."""
    rows = nn.functional.normalize(vectors, dim=-1)
    n = len(rows)
    return (rows @ rows.T).flatten()[1:].view(n - 1, n + 1)[:, :-1].reshape(n, n - 1)


class SimilarityLoss(nn.Module):
    """The loss as the trainer calls it: a text's label is its place in the target."""

    def __init__(self, model: Any, target: np.ndarray) -> None:
        super().__init__()
        self.model = model
        self.target = torch.as_tensor(target)

    def forward(self, sentence_features: Sequence[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        vectors, order = embed_by_length(self.model, sentence_features[0])
        return similarity_loss(vectors, self.target[labels.cpu()[order]].to(vectors.device))


def agreement(vectors: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return how far each text's neighbors (n,) are those by the teacher's target."""
    reference = Neighborhoods.of(similarities(target))
    return np.asarray(reference.agreement(similarities(vectors)).cpu(), dtype=np.float64)


def head_of(student: Any) -> Head:
    """Return the student's dense layer as a head."""
    linear = student[2].linear
    weight = linear.weight.detach().double().cpu().numpy()
    bias = linear.bias.detach().double().cpu().numpy()
    return Head(np.zeros(weight.shape[1]), weight.T, shift=bias)


def _load(folder: Path) -> Any:
    with quiet():
        return load_folder(folder)


def _interval(gains: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of a mean gain over texts."""
    error = 1.96 * float(gains.std(ddof=1)) / len(gains) ** 0.5
    return float(gains.mean()) - error, float(gains.mean()) + error


def _as_loaded(student: Any, base: LoadedModel, training: Training) -> LoadedModel:
    """Return the student's blocks as a loaded model of the base model's name and precision."""
    loaded = wrap(student[0].auto_model, base.tokenizer, base.name)
    loaded.identity = {
        **base.identity,
        "weights_sha256": loaded.identity["weights_sha256"],
        "trained": {
            "steps": training.steps,
            "texts": training.texts,
            "seed": training.seed,
            "base": base.identity.get("weights_sha256"),
        },
    }
    return loaded
