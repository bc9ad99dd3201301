"""Train the kept blocks of an encoder so that they give the whole encoder's vectors.

Training starts from the refitted blocks. Most texts are learned from; some say when to stop. All
other weights, such as the token embeddings, stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from layerscope.blocks.encoder import Encoder, Variant
from layerscope.blocks.result import write_folder
from layerscope.blocks.search import TextSet, measure_agreement
from layerscope.errors import LayerscopeError
from layerscope.exporting.pipeline import load_folder
from layerscope.models import wrap
from layerscope.models.settings import quiet
from layerscope.progress import OnRows, Progress
from layerscope.training.distill import MINUTES, TrainingPlan, embed_by_length, train

RATE = 8e-4
"""The rate of learning with 512 texts a step."""

SQUARES = 10.0
"""The weight of the squared difference of similarities, beside the distance of the vectors."""

WATCHED = 300
"""Texts that say when to stop, at most; and at most an eighth of all."""

LEAST_TEXTS = 64


@dataclass(frozen=True)
class TrainRequest:
    """Settings of a training: the folder for checkpoints, the minutes, the trainer's settings."""

    folder: Path
    minutes: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    on_rows: OnRows | None = None


@dataclass(frozen=True)
class TrainedBlocks:
    """Trained blocks, the steps that they took, and the number of texts that were learned from."""

    variant: Variant
    steps: int
    texts: int


class VectorLoss(nn.Module):
    """One minus the cosine to the teacher's vector, and the squared difference of similarities.

    A text's label is its place in the target (texts, D), whose rows have length 1.
    """

    def __init__(self, model: Any, target: np.ndarray) -> None:
        super().__init__()
        self.model = model
        self.target = torch.as_tensor(target)

    def forward(self, sentence_features: Sequence[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        vectors, order = embed_by_length(self.model, sentence_features[0])
        vectors = nn.functional.normalize(vectors, dim=-1)
        target = self.target[labels.cpu()[order]].to(vectors.device)
        distance = 1 - (vectors * target).sum(1).mean()
        difference = vectors @ vectors.T - target @ target.T
        return distance + SQUARES * difference.square().mean()


def train_blocks(
    encoder: Encoder,
    variant: Variant,
    texts: TextSet,
    request: TrainRequest,
    seed: int,
    bar: Progress,
) -> TrainedBlocks:
    """Train the blocks of a variant on texts; a stopped training resumes from its checkpoints."""
    if len(texts) < LEAST_TEXTS:
        raise LayerscopeError(
            f"{len(texts)} texts are too few to train on: give {LEAST_TEXTS} or more, or leave out "
            "train=."
        )
    watched, learned = texts.cut(min(WATCHED, len(texts) // 8))
    start = request.folder / "start"
    if not start.is_dir():
        write_folder(encoder, variant, start)
    with quiet():
        student = load_folder(start, device=encoder.device).float()
    student.max_seq_length = encoder.max_length
    student.default_prompt_name = None  # the prompt is part of the texts
    blocks = wrap(student).anatomy.blocks
    student.requires_grad_(False)
    for block in blocks:
        block.requires_grad_(True)
    prompt = encoder.prompt or ""
    goal = encoder.encode(encoder.whole, encoder.batches(watched.texts))
    watched_texts = [prompt + text for text in watched.texts]

    def measure(model: Any) -> float:
        vectors = model.encode(watched_texts, normalize_embeddings=True, show_progress_bar=False)
        return measure_agreement(goal, np.asarray(vectors), watched.queries)[0]

    target = encoder.encode(encoder.whole, encoder.batches(learned.texts))
    minutes = MINUTES if request.minutes is None else request.minutes
    state = train(
        student,
        TrainingPlan(
            request.folder, encoder.device, seed, minutes, RATE, settings=request.settings
        ),
        [prompt + text for text in learned.texts],
        VectorLoss(student, target),
        measure,
        bar=bar,
        on_rows=request.on_rows,
    )
    student.eval().requires_grad_(False)
    dtype = next(encoder.model.module.parameters()).dtype
    modules = tuple(block.to(device=encoder.device, dtype=dtype) for block in blocks)
    steps = state.best_global_step or state.global_step
    return TrainedBlocks(Variant(variant.blocks, modules), steps, len(learned))
