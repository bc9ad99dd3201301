"""Train a student with sentence-transformers' own trainer, so that it does what its teacher does.

The caller brings the loss and the measure by which the best student is kept. A folder holds the
trainer's checkpoints, from which a training that was stopped resumes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from layerscope.core.files import read_json
from layerscope.errors import UnknownNameError
from layerscope.extras import missing
from layerscope.models.settings import bfloat16_units, quiet
from layerscope.progress import OnRows, Progress, send

MINUTES = 30.0
"""Minutes that a training takes at most, unless another time is given."""

STEPS = 3000
"""The most steps that a training takes; the rate of learning falls to zero with the last."""

BATCH, CPU_BATCH = 512, 64
"""Texts of a step. The more there are, the nearer are the nearest; without a GPU memory and time
allow fewer."""
PARTS, CPU_PARTS = 2, 4
"""Parts of like lengths into which a step's texts are cut. A GPU waits for the launches of each
part: on an H200 four take 1.7 × as long as two."""
TRIALS = 5
"""Steps that are tried out to find how many the time allows; on a GPU, the first few take many
times as long."""
WARMUP = 100
LOOKS, PATIENCE = 20, 4
"""How often the student is measured, and after how many times without a gain training stops."""

_RESERVED = (
    "hub_", "output_dir", "eval_strategy", "save_strategy", "save_steps", "push_to_hub",
    "load_best_model_at_end", "metric_for_best_model", "greater_is_better",
)  # fmt: skip


@dataclass(frozen=True)
class TrainingPlan:
    """The settings of one training.

    `minutes` limit its steps, `settings` are the trainer's own. `rate` is the rate of learning with
    a batch of `BATCH` texts (smaller ones: less, by the root); `rates` has other rates by the
    pattern of a parameter's name.
    """

    folder: Path
    device: torch.device
    seed: int
    minutes: float | None
    rate: float
    rates: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


def train(
    student: Any,
    plan: TrainingPlan,
    texts: Sequence[str],
    loss: nn.Module,
    measure: Callable[[Any], float],
    *,
    bar: Progress,
    on_rows: OnRows | None = None,
) -> Any:
    """Train a student, or resume its training; return the trainer's state.

    The loss is called with the features of texts and their places in `texts`. The student then is
    the one that `measure` says is best.
    """
    # else the card's examples are taken from the texts of the user
    student.model_card_data.widget = [{"text": "A text."}]
    # most words of a language are in no training
    student[0].auto_model.get_input_embeddings().requires_grad_(False)
    # nobody reads the cards of checkpoints
    student.save_pretrained = partial(student.save_pretrained, create_model_card=False)
    usual = max(2, min(CPU_BATCH if plan.device.type == "cpu" else BATCH, len(texts) // 4))
    batch = int(plan.settings.get("per_device_train_batch_size", usual))
    checkpoint = _last_checkpoint(plan.folder)
    if checkpoint is None:
        steps = _count_steps(student, loss, texts, batch, plan)
    else:
        steps = int(read_json(checkpoint / "trainer_state.json")["max_steps"])
    trainer = _make_trainer(student, plan, texts, loss, _make_evaluator(measure), batch, steps)
    trainer.add_callback(_make_reporter(bar, on_rows))
    with quiet():
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return trainer.state


def embed_by_length(
    model: Any, features: Mapping[str, Any], chunks: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return vectors (n, D) of a padded batch, the shortest text first, and that order (n,).

    The batch is read in parts of like lengths, so that one long text lengthens only its own part.
    """
    mask = features["attention_mask"]
    lengths = mask.sum(1).cpu()
    order = torch.argsort(lengths, stable=True)
    vectors = []
    for chunk in order.chunk(chunks or (PARTS if mask.is_cuda else CPU_PARTS)):
        rows = chunk.to(mask.device)
        longest = int(lengths[chunk[-1]])
        columns = slice(0, longest)
        if not bool(mask[rows[-1], 0]):  # padding stands first
            columns = slice(mask.shape[1] - longest, None)
        inputs = {
            name: value[rows][:, columns]
            if isinstance(value, Tensor) and value.shape[:2] == mask.shape
            else value
            for name, value in features.items()
        }
        vectors.append(model(inputs)["sentence_embedding"].float())
    return torch.cat(vectors), order


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise if a setting is none of the trainer's, or one that layerscope sets itself."""
    from sentence_transformers import SentenceTransformerTrainingArguments

    names = SentenceTransformerTrainingArguments.__dataclass_fields__
    valid = [name for name in names if not name.startswith(_RESERVED)]
    for name in settings:
        if name not in valid:
            raise UnknownNameError("setting of the trainer (train=)", name, valid)


def fast_half(device: torch.device) -> bool:
    """Return whether the chip computes in bfloat16, rather than emulates it."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bfloat16_units() in ("amx_bf16", "avx512_bf16")


def _last_checkpoint(folder: Path) -> Path | None:
    """Return the last checkpoint that is complete: its state is written last."""
    states = folder.glob("checkpoint-*/trainer_state.json")
    complete = [file.parent for file in states]
    return max(complete, key=lambda place: int(place.name.rpartition("-")[2]), default=None)


def _count_steps(
    student: Any, loss: nn.Module, texts: Sequence[str], batch: int, plan: TrainingPlan
) -> int:
    """Return how many steps the time allows, from a few that are tried out and forgotten."""
    limit = min(STEPS, plan.settings.get("max_steps", STEPS))
    if plan.minutes is None:
        return limit
    seconds = []
    for trial in range(TRIALS):
        places = [(trial * batch + i) % len(texts) for i in range(batch)]
        start = time.perf_counter()
        with torch.autocast(plan.device.type, dtype=torch.bfloat16, enabled=fast_half(plan.device)):
            features = student.preprocess([texts[i] for i in places])
            for name, value in features.items():
                if isinstance(value, Tensor):
                    features[name] = value.to(plan.device)
            loss([features], torch.tensor(places)).backward()
        student.zero_grad(set_to_none=True)
        if plan.device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    step_seconds = 1.15 * min(seconds)  # the update of the weights comes on top
    return max(1, min(limit, int(60 * plan.minutes / step_seconds)))


def _make_trainer(
    student: Any,
    plan: TrainingPlan,
    texts: Sequence[str],
    loss: nn.Module,
    evaluator: Any,
    batch: int,
    steps: int,
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
    interval = max(1, steps // LOOKS)
    arguments = {
        "learning_rate": plan.rate * (batch / BATCH) ** 0.5,
        "learning_rate_mapping": dict(plan.rates),
        "warmup_steps": min(WARMUP, steps // 10),
        "bf16": fast_half(plan.device),
        "seed": plan.seed,
        "per_device_train_batch_size": batch,
        "dataloader_drop_last": True,
        "eval_strategy": "steps",
        "eval_steps": interval,
        "logging_steps": interval,
        "save_total_limit": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": "agreement",
        "greater_is_better": True,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": plan.device.type == "cpu",
        **plan.settings,
        "max_steps": steps,
        "output_dir": str(plan.folder),
        "save_strategy": "steps",
    }
    arguments["save_steps"] = arguments["eval_steps"]
    settings = SentenceTransformerTrainingArguments(**arguments)
    if settings.n_gpu > 1:
        settings._n_gpu = 1  # the loss reads a batch by itself; the model stays on its GPU
    with quiet():
        trainer = SentenceTransformerTrainer(
            model=student,
            args=settings,
            loss=loss,
            train_dataset=Dataset.from_dict({"text": texts, "label": list(range(len(texts)))}),
            evaluator=evaluator,
            callbacks=[EarlyStoppingCallback(PATIENCE)],
        )
    # these print, and write a model card that is not used
    for callback in list(trainer.callback_handler.callbacks):
        name = type(callback).__name__
        if name == "PrinterCallback" or "ModelCard" in name:
            trainer.remove_callback(callback)
    return trainer


def _make_evaluator(measure: Callable[[Any], float]) -> Any:
    from sentence_transformers.evaluation import SentenceEvaluator

    class AgreementEvaluator(SentenceEvaluator):
        """Agreement with the teacher on texts that are not learned from."""

        def __init__(self) -> None:
            super().__init__()
            self.primary_metric = "agreement"

        def __call__(
            self, model: Any, output_path: str | None = None, epoch: float = -1, steps: int = -1
        ) -> dict[str, float]:
            return {"agreement": measure(model)}

    return AgreementEvaluator()


def _make_reporter(bar: Progress, on_rows: OnRows | None) -> Any:
    from transformers import TrainerCallback

    class Reporter(TrainerCallback):
        """Show the steps on the bar, and send what the trainer logs to `on_rows`."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
            bar.begin("training|steps", state.max_steps, state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
            bar.advance(1)

        def on_log(
            self, args: Any, state: Any, control: Any, logs: Any = None, **keywords: Any
        ) -> None:
            numbers = {
                f"train/{name}": value
                for name, value in (logs or {}).items()
                if isinstance(value, int | float)
            }
            send(on_rows, state.global_step, numbers)

    return Reporter()
