"""The training of a student on texts and what their teacher says of them.

The training is sentence-transformers' own, and so are the checkpoints in its folder from which a
training that was stopped is resumed; what is here is the loss, and how long it may take.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from layerscope.core.heads import unit
from layerscope.core.json import read_json
from layerscope.errors import UnknownNameError
from layerscope.exporting.formats.sentence_transformers import load_folder
from layerscope.extras import missing
from layerscope.models.settings import bfloat16_units, quiet
from layerscope.selection.judges.agreement import Neighborhoods, similarities
from layerscope.store import atomic

STEPS = 3000
"""The most steps that a training takes; the rate of learning falls to zero with the last."""

BATCH, CPU_BATCH = 512, 64
"""Texts of a step. The more there are, the nearer are the nearest; without a GPU memory and time
allow fewer."""
PARTS, CPU_PARTS = 2, 4
"""Into how many parts of like lengths a step's texts are cut. A GPU waits for the launches of each
part: on an H200 four take
1.7 × as long as two."""
TRIALS = 5
"""Steps that are tried out to say how many the time allows; on a GPU, the first few take many times
as long."""
WARMUP = 100
RATE, HEAD_RATE = 4e-4, 0.02
"""How fast the blocks learn from a whole batch (smaller ones: less, by the root), and the head: a
share of the size of its numbers, which depends on the model's. At twice the rate, one of two models
unlearned."""
SHARPNESS = 0.05
"""Similarities are divided by this before they become the shares of a text's neighbors."""
SQUARES = 10.0
"""What the squared difference of similarities counts, beside the divergence of those shares."""
LOOKS, PATIENCE = 20, 4
"""How often the training is looked at, and after how many looks without a gain it stops."""

OnLog = Callable[[dict[str, Any]], None]
START, PLAN = "start", "plan.json"


def similarity_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """How much the similarities of vectors (n, D) differ from those of their teacher's vectors (n,
    K).

    For every text, the divergence of how near the others are, the nearest counting most; and the
    mean squared difference of all similarities. Nothing is centered on the batch: vectors that are
    right only without their mean would be wrong for a user.
    """
    ours, theirs = (_others(nn.functional.normalize(rows, dim=-1)) for rows in (student, teacher))
    asked, given = (nn.functional.log_softmax(rows / SHARPNESS, dim=-1) for rows in (theirs, ours))
    divergence = (asked.exp() * (asked - given)).sum(-1).mean()
    return divergence + SQUARES * (ours - theirs).square().mean()


def _others(rows: Tensor) -> Tensor:
    """The similarities (n, n − 1) of every row to the others."""
    n = len(rows)
    return (rows @ rows.T).flatten()[1:].view(n - 1, n + 1)[:, :-1].reshape(n, n - 1)


def embed_by_length(
    model: Any, features: Mapping[str, Any], parts: int | None = None
) -> tuple[Tensor, Tensor]:
    """Vectors (n, D) of a padded batch, the shortest text first, and its places in that order (n,),
    on the CPU.

    The batch is read in parts of like lengths: one long text makes the others of its part as long
    as it is, not all.
    """
    mask = features["attention_mask"]
    lengths = mask.sum(1).cpu()
    order, found = torch.argsort(lengths, stable=True), []
    for some in order.chunk(parts or (PARTS if mask.is_cuda else CPU_PARTS)):
        here, longest = some.to(mask.device), int(lengths[some[-1]])
        kept = (
            slice(0, longest) if bool(mask[here[-1], 0]) else slice(mask.shape[1] - longest, None)
        )  # padding may stand first
        fed = {
            name: value[here][:, kept]
            if isinstance(value, Tensor) and value.shape[:2] == mask.shape
            else value
            for name, value in features.items()
        }
        found.append(model(fed)["sentence_embedding"].float())
    return torch.cat(found), order


def agreement(vectors: np.ndarray, target: np.ndarray) -> np.ndarray:
    """How far each text's neighbors (n,) are those that the teacher's target gives it."""
    return np.asarray(
        Neighborhoods.of(similarities(target)).agreement(similarities(vectors)).cpu(),
        dtype=np.float64,
    )


def learn(
    folder: Path,
    texts: Sequence[str],
    target: np.ndarray,
    watched: int,
    *,
    seed: int,
    device: torch.device,
    settings: Mapping[str, Any],
    minutes: float | None = None,
    on_step: Callable[[int, int], None] | None = None,
    on_log: OnLog | None = None,
) -> tuple[Any, Any]:
    """Train the student in `folder/start`, or resume its training from the last checkpoint.

    The last `watched` texts say when to stop; `settings` are the trainer's. `on_step` gets the
    steps that are done and how many there are at most, `on_log` what the trainer logs at a step.
    Returns the best student and the trainer's state.
    """
    with quiet():
        student = load_folder(folder / START).float().to(device)
    # else the card's examples are taken from the texts of the user
    student.model_card_data.widget = [{"text": "A text."}]
    # most words of a language are in no lesson
    student[0].auto_model.get_input_embeddings().requires_grad_(False)
    target = unit(target).astype(np.float32)
    learned, loss = len(texts) - watched, _loss(student, target)
    batch = _batch(learned, device, settings)
    if (folder / PLAN).is_file():
        steps = read_json(folder / PLAN)["steps"]
    else:
        steps = _plan_steps(student, loss, texts[:learned], batch, settings, minutes)
        atomic.write_json(folder / PLAN, {"steps": steps})
    evaluator = _evaluator(texts[learned:], target[learned:])
    callbacks = [_reporter(on_step, on_log)]
    trainer = _trainer(
        folder, student, texts[:learned], loss, evaluator, callbacks, batch, steps, seed, settings
    )
    # a checkpoint that was written whole has its state, which is written last
    saved = [file.parent for file in folder.glob("checkpoint-*/trainer_state.json")]
    last = max(saved, key=lambda place: int(place.name.rpartition("-")[2]), default=None)
    with quiet():
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
    return student, trainer.state


def _plan_steps(
    student: Any,
    loss: nn.Module,
    texts: Sequence[str],
    batch: int,
    settings: Mapping[str, Any],
    minutes: float | None,
) -> int:
    """Return how many steps the time allows, from a few that are tried out and forgotten."""
    most = min(STEPS, settings.get("max_steps", STEPS))
    if minutes is None:
        return most
    half, seconds = fast_half(student.device), []
    for turn in range(TRIALS):
        some = [(turn * batch + i) % len(texts) for i in range(batch)]
        start = time.perf_counter()
        with torch.autocast(student.device.type, dtype=torch.bfloat16, enabled=half):
            fed = student.preprocess([texts[i] for i in some])
            fed = {
                name: value.to(student.device) if isinstance(value, Tensor) else value
                for name, value in fed.items()
            }
            loss([fed], torch.tensor(some)).backward()
        student.zero_grad(set_to_none=True)
        if student.device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    each = 1.15 * min(seconds)  # the update of the weights comes on top
    return max(1, min(most, int(60 * minutes / each)))


def _trainer(
    folder: Path,
    student: Any,
    texts: Sequence[str],
    loss: nn.Module,
    evaluator: Any,
    callbacks: list[Any],
    batch: int,
    steps: int,
    seed: int,
    settings: Mapping[str, Any],
) -> Any:
    """Return the trainer: it keeps the best student, and stops when none was better for a while."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from datasets import Dataset
        from sentence_transformers import (
            SentenceTransformerTrainer,
            SentenceTransformerTrainingArguments,
        )
        from transformers import EarlyStoppingCallback
    except ImportError as error:
        raise missing("train") from error
    # nobody reads the cards of checkpoints
    student.save_pretrained = partial(student.save_pretrained, create_model_card=False)
    look = max(1, steps // LOOKS)
    given = {
        "learning_rate": RATE * (batch / BATCH) ** 0.5, "learning_rate_mapping": _head_rates(student[2].linear),
        "warmup_steps": min(WARMUP, steps // 10), "bf16": fast_half(student.device), "seed": seed,
        "per_device_train_batch_size": batch, "dataloader_drop_last": True,
        "eval_strategy": "steps", "eval_steps": look, "logging_steps": look, "save_total_limit": 1,
        "load_best_model_at_end": True, "metric_for_best_model": "agreement", "greater_is_better": True,
        "report_to": "none", "disable_tqdm": True, "use_cpu": student.device.type == "cpu",
        **check_settings(settings), "max_steps": steps,
    }  # fmt: skip
    args = SentenceTransformerTrainingArguments(
        output_dir=str(folder), save_strategy="steps", save_steps=given["eval_steps"], **given
    )
    if args.n_gpu > 1:
        args._n_gpu = 1  # the loss reads a batch by itself; the model stays on its GPU
    with quiet():
        trainer = SentenceTransformerTrainer(
            model=student,
            args=args,
            loss=loss,
            train_dataset=Dataset.from_dict({"text": texts, "label": list(range(len(texts)))}),
            evaluator=evaluator,
            callbacks=[*callbacks, EarlyStoppingCallback(PATIENCE)],
        )
    # these print, and write a model card that is not used
    for callback in list(trainer.callback_handler.callbacks):
        name = type(callback).__name__
        if name == "PrinterCallback" or "ModelCard" in name:
            trainer.remove_callback(callback)
    return trainer


def _head_rates(linear: nn.Linear) -> dict[str, float]:
    """The rates of a head's weight and bias."""
    sizes = {
        name: float(part.detach().square().mean().sqrt())
        for name, part in linear.named_parameters()
    }
    return {rf"linear\.{name}$": HEAD_RATE * size for name, size in sizes.items()}


def _batch(texts: int, device: torch.device, given: Mapping[str, Any]) -> int:
    """Texts of a step: at least four steps to a pass."""
    usual = max(2, min(CPU_BATCH if device.type == "cpu" else BATCH, texts // 4))
    return int(given.get("per_device_train_batch_size", usual))


_OURS = (
    "output_dir", "eval_strategy", "save_strategy", "save_steps", "push_to_hub", "load_best_model_at_end",
    "metric_for_best_model", "greater_is_better",
)  # fmt: skip


def check_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the trainer that may be given; an error that names what is valid."""
    from sentence_transformers import SentenceTransformerTrainingArguments

    valid = [
        name
        for name in SentenceTransformerTrainingArguments.__dataclass_fields__
        if not name.startswith(("hub_", *_OURS))
    ]
    for name in given:
        if name not in valid:
            raise UnknownNameError("setting of the trainer (train=)", name, valid)
    return dict(given)


def fast_half(device: torch.device) -> bool:
    """Whether the chip computes in bfloat16, rather than emulates it."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bfloat16_units() in ("amx_bf16", "avx512_bf16")


def _loss(student: Any, target: np.ndarray) -> nn.Module:
    class SimilarityLoss(nn.Module):
        """The trainer's face of `similarity_loss`: a text's label is its place in the target."""

        def __init__(self) -> None:
            super().__init__()
            self.model, self.target = student, torch.as_tensor(target)

        def forward(self, sentence_features: Sequence[dict[str, Tensor]], labels: Tensor) -> Tensor:
            vectors, order = embed_by_length(self.model, sentence_features[0])
            return similarity_loss(vectors, self.target[labels.cpu()[order]].to(vectors.device))

    return SimilarityLoss()


def _evaluator(texts: Sequence[str], target: np.ndarray) -> Any:
    from sentence_transformers.evaluation import SentenceEvaluator

    class Watched(SentenceEvaluator):
        """Agreement with the teacher on texts that are not learned from."""

        def __init__(self) -> None:
            super().__init__()
            self.primary_metric = "agreement"

        def __call__(
            self, model: Any, output_path: str | None = None, epoch: float = -1, steps: int = -1
        ) -> dict[str, float]:
            vectors = model.encode(list(texts), show_progress_bar=False, convert_to_numpy=True)
            return {"agreement": float(agreement(vectors, target).mean())}

    return Watched()


def _reporter(on_step: Callable[[int, int], None] | None, on_log: OnLog | None) -> Any:
    from transformers import TrainerCallback

    class Reporter(TrainerCallback):
        """Tells the steps that are done, and what the trainer logs."""

        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if on_step is not None:
                on_step(state.global_step, state.max_steps)

        def on_log(
            self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any
        ) -> None:
            if on_log is not None and logs:
                on_log({"step": state.global_step, **logs})

    return Reporter()
