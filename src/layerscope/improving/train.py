"""Train the blocks below a head with the head's own teacher, and compare the student with it.

The texts are split once. Most are learned from; some say when to stop; the student is compared on
the rest with the head that it began with, which was fitted on the same texts. The training is
sentence-transformers' own. A folder holds its checkpoints, from which it resumes.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from layerscope.choose.judges.agreement import Neighborhoods, similarities
from layerscope.core.heads import Head, Ridge, unit
from layerscope.exporting.draft import ExportRequest, verification_texts
from layerscope.exporting.pipeline import load_folder, write_draft
from layerscope.improving.decision import Training
from layerscope.improving.fit import Lesson
from layerscope.improving.heads import READOUT as HEAD_READOUT
from layerscope.improving.reader import Encode
from layerscope.models import LoadedModel, wrap
from layerscope.models.settings import quiet
from layerscope.progress import OnRows, Progress
from layerscope.training.distill import TrainingPlan, embed_by_length, train

CHECKED = 500
"""Texts that the student is compared on, at most; and at most an eighth of all. As many say when to
stop."""

RATE, HEAD_RATE = 4e-4, 0.02
"""The rates of learning: of the blocks from a whole batch (smaller ones: less, by the root), and of
the head, as a share of the size of its numbers. At twice the rate, one of two models unlearned."""
SHARPNESS = 0.05
"""Similarities are divided by this before they become the shares of a text's neighbors."""
SQUARES = 10.0
"""The weight of the squared difference of similarities, beside the divergence of those shares."""


@dataclass(frozen=True)
class Student:
    """The trained blocks and their head, with the comparison."""

    model: LoadedModel
    head: Head
    training: Training


def train_student(
    model: LoadedModel,
    layer: int,
    lesson: Lesson,
    today: Encode,
    plan: TrainingPlan,
    *,
    max_length: int,
    bar: Progress,
    on_rows: OnRows | None = None,
) -> Student:
    """Train the blocks below `layer` until similarities of texts agree with those of the target.

    `today` encodes texts as the user has it now. A training that was stopped resumes from the
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
        model, layer, HEAD_READOUT, shown, max_length=max_length, unit=True, head=head
    )
    write_draft(request, start)
    student = _load(start).float().to(model.device)
    rates = {
        rf"linear\.{name}$": HEAD_RATE * float(part.detach().square().mean().sqrt())
        for name, part in student[2].linear.named_parameters()
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
    now = agreement(today(texts_at(checked)), lesson.target[checked])
    curve = [
        (entry["step"], entry["eval_agreement"])
        for entry in state.log_history
        if "eval_agreement" in entry
    ]
    training = Training(
        teacher=lesson.teacher,
        blocks=layer,
        steps=state.best_global_step or state.global_step,
        texts=len(learned),
        seed=plan.seed,
        checked=len(checked),
        head=float(before.mean()),
        student=float(after.mean()),
        today=float(now.mean()),
        over_head=_interval(after - before),
        over_today=_interval(after - now),
        curve=tuple(curve),
    )
    return Student(_as_loaded(student, model, training), head_of(student), training)


def similarity_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return how much the similarities of vectors (n, D) differ from the teacher's (n, K).

    For every text, the divergence of how near the others are, the nearest counting most; and the
    mean squared difference of all similarities. Nothing is centered on the batch: vectors that are
    right only without their mean would be wrong for a user.
    """
    ours = _similarities_to_others(student)
    theirs = _similarities_to_others(teacher)
    goal = nn.functional.log_softmax(theirs / SHARPNESS, dim=-1)
    shares = nn.functional.log_softmax(ours / SHARPNESS, dim=-1)
    divergence = (goal.exp() * (goal - shares)).sum(-1).mean()
    return divergence + SQUARES * (ours - theirs).square().mean()


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
