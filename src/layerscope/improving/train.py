"""Train the blocks below a head with the head's own teacher, and compare the student with it.

The texts are split once. Most are learned from; some say when to stop; the student is compared on
the rest with the head that it began with, which was fitted on the same texts. The training is
sentence-transformers' own. A folder holds its checkpoints, from which it resumes.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from layerscope.core.heads import Head, Ridge, unit
from layerscope.core.json import read_json
from layerscope.core.readout import HEAD, Readout
from layerscope.errors import UnknownNameError
from layerscope.exporting.formats.sentence_transformers import load_folder
from layerscope.exporting.job import prepare
from layerscope.extras import missing
from layerscope.improving.evidence import Training
from layerscope.loggers import OnRows, send
from layerscope.models import LoadedModel, wrap
from layerscope.models.settings import bfloat16_units, quiet
from layerscope.progress import Progress
from layerscope.selection.judges.agreement import Neighborhoods, similarities

CHECKED = 500
"""Texts that the student is compared on, at most; and at most an eighth of all. As many say when to
stop."""

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
RATE, HEAD_RATE = 4e-4, 0.02
"""The rates of learning: of the blocks from a whole batch (smaller ones: less, by the root), and of
the head, as a share of the size of its numbers. At twice the rate, one of two models unlearned."""
SHARPNESS = 0.05
"""Similarities are divided by this before they become the shares of a text's neighbors."""
SQUARES = 10.0
"""The weight of the squared difference of similarities, beside the divergence of those shares."""
LOOKS, PATIENCE = 20, 4
"""How often the student is measured, and after how many times without a gain training stops."""

_RESERVED = (
    "hub_", "output_dir", "eval_strategy", "save_strategy", "save_steps", "push_to_hub",
    "load_best_model_at_end", "metric_for_best_model", "greater_is_better",
)  # fmt: skip


@dataclass(frozen=True)
class Student:
    """The trained blocks and their head, with the comparison."""

    model: LoadedModel
    head: Head
    training: Training


@dataclass(frozen=True)
class TrainingPlan:
    """The settings of one training; `minutes` limit its steps, `settings` are the trainer's."""

    folder: Path
    device: torch.device
    seed: int
    minutes: float | None
    settings: Mapping[str, Any]


def train_student(
    model: LoadedModel,
    layer: int,
    texts: Sequence[str],
    plain: np.ndarray,
    target: np.ndarray,
    today: Callable[[Sequence[str]], np.ndarray],
    *,
    teacher: str,
    folder: Path,
    max_length: int,
    seed: int = 0,
    minutes: float | None = None,
    settings: Mapping[str, Any] | None = None,
    on_rows: OnRows | None = None,
    bar: Progress,
) -> Student:
    """Train the blocks below `layer` until similarities of texts agree with those of the target.

    `plain` (texts, D) are the layer's plain vectors, from which the head that the student begins
    with is fitted; `target` (texts, K) are the teacher's vectors. `today` encodes texts as the user
    has it now. A training that was stopped resumes from the checkpoints in `folder`.
    """
    order = np.random.default_rng([seed, 7]).permutation(len(texts))
    aside = min(CHECKED, len(texts) // 8)
    checked, watched, learned = np.split(order, [aside, 2 * aside])
    head = Ridge(plain[learned], target[learned]).head()
    start = folder / "start"
    shutil.rmtree(start, ignore_errors=True)
    readout = Readout(centering=HEAD)
    prepare(
        model, layer, readout, start,
        brief=True, max_length=max_length, unit=True, center=lambda _: head,
    )  # fmt: skip
    plan = TrainingPlan(folder, model.device, seed, minutes, settings or {})
    student = _load(start).float().to(model.device)
    state = _learn(
        student,
        plan,
        ([texts[i] for i in learned], unit(target[learned]).astype(np.float32)),
        ([texts[i] for i in watched], unit(target[watched]).astype(np.float32)),
        _make_reporter(bar, on_rows),
    )
    compared = [texts[i] for i in checked]
    scores = []
    for encoder in (_load(start), student):  # in the precision in which it is handed over
        encoder.to(device=model.device, dtype=next(model.module.parameters()).dtype).eval()
        vectors = encoder.encode(compared, show_progress_bar=False)
        scores.append(agreement(vectors, target[checked]))
    before, after = scores
    now = agreement(today(compared), target[checked])
    measured = [entry for entry in state.log_history if "eval_agreement" in entry]
    training = Training(
        teacher=teacher,
        blocks=layer,
        steps=state.best_global_step or state.global_step,
        texts=len(learned),
        seed=seed,
        checked=len(checked),
        head=float(before.mean()),
        student=float(after.mean()),
        today=float(now.mean()),
        over_head=_interval(after - before),
        over_today=_interval(after - now),
        curve=tuple((entry["step"], entry["eval_agreement"]) for entry in measured),
    )
    return Student(
        _as_loaded(student, model, training), _head_of(student, head.fitted_on), training
    )


def similarity_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return how much the similarities of vectors (n, D) differ from the teacher's (n, K).

    For every text, the divergence of how near the others are, the nearest counting most; and the
    mean squared difference of all similarities. Nothing is centered on the batch: vectors that are
    right only without their mean would be wrong for a user.
    """
    ours = _others(nn.functional.normalize(student, dim=-1))
    theirs = _others(nn.functional.normalize(teacher, dim=-1))
    wanted_shares = nn.functional.log_softmax(theirs / SHARPNESS, dim=-1)
    shares = nn.functional.log_softmax(ours / SHARPNESS, dim=-1)
    divergence = (wanted_shares.exp() * (wanted_shares - shares)).sum(-1).mean()
    return divergence + SQUARES * (ours - theirs).square().mean()


def _others(rows: Tensor) -> Tensor:
    """Return the similarities (n, n − 1) of every row to the others."""
    n = len(rows)
    return (rows @ rows.T).flatten()[1:].view(n - 1, n + 1)[:, :-1].reshape(n, n - 1)


def embed_by_length(
    model: Any, features: Mapping[str, Any], parts: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return vectors (n, D) of a padded batch, the shortest text first, and that order (n,).

    The batch is read in parts of like lengths, so that one long text lengthens only its own part.
    """
    mask = features["attention_mask"]
    lengths = mask.sum(1).cpu()
    order = torch.argsort(lengths, stable=True)
    vectors = []
    for part in order.chunk(parts or (PARTS if mask.is_cuda else CPU_PARTS)):
        rows = part.to(mask.device)
        longest = int(lengths[part[-1]])
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


Lesson = tuple[list[str], np.ndarray]


def _learn(
    student: Any, plan: TrainingPlan, learned: Lesson, watched: Lesson, reporter: Any
) -> Any:
    """Train a student, or resume its training; return the trainer's state.

    The student then is the one that agreed best on the watched texts.
    """
    texts, target = learned
    # else the card's examples are taken from the texts of the user
    student.model_card_data.widget = [{"text": "A text."}]
    # most words of a language are in no lesson
    student[0].auto_model.get_input_embeddings().requires_grad_(False)
    # nobody reads the cards of checkpoints
    student.save_pretrained = partial(student.save_pretrained, create_model_card=False)
    loss = SimilarityLoss(student, target)
    usual = max(2, min(CPU_BATCH if plan.device.type == "cpu" else BATCH, len(texts) // 4))
    batch = int(plan.settings.get("per_device_train_batch_size", usual))
    checkpoint = _last_checkpoint(plan.folder)
    if checkpoint is None:
        steps = _count_steps(student, loss, texts, batch, plan)
    else:
        steps = int(read_json(checkpoint / "trainer_state.json")["max_steps"])
    trainer = _make_trainer(student, plan, texts, loss, _make_evaluator(*watched), batch, steps)
    trainer.add_callback(reporter)
    with quiet():
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return trainer.state


def _last_checkpoint(folder: Path) -> Path | None:
    """Return the last checkpoint that is complete: its state is written last."""
    states = folder.glob("checkpoint-*/trainer_state.json")
    complete = [file.parent for file in states]
    return max(complete, key=lambda place: int(place.name.rpartition("-")[2]), default=None)


def _count_steps(
    student: Any, loss: nn.Module, texts: Sequence[str], batch: int, plan: TrainingPlan
) -> int:
    """Return how many steps the time allows, from a few that are tried out and forgotten."""
    most = min(STEPS, plan.settings.get("max_steps", STEPS))
    if plan.minutes is None:
        return most
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
    each = 1.15 * min(seconds)  # the update of the weights comes on top
    return max(1, min(most, int(60 * plan.minutes / each)))


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
    every = max(1, steps // LOOKS)
    linear = student[2].linear
    arguments = {
        "learning_rate": RATE * (batch / BATCH) ** 0.5,
        "learning_rate_mapping": {
            rf"linear\.{name}$": HEAD_RATE * float(part.detach().square().mean().sqrt())
            for name, part in linear.named_parameters()
        },
        "warmup_steps": min(WARMUP, steps // 10),
        "bf16": fast_half(plan.device),
        "seed": plan.seed,
        "per_device_train_batch_size": batch,
        "dataloader_drop_last": True,
        "eval_strategy": "steps",
        "eval_steps": every,
        "logging_steps": every,
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


def _make_evaluator(texts: Sequence[str], target: np.ndarray) -> Any:
    from sentence_transformers.evaluation import SentenceEvaluator

    class AgreementEvaluator(SentenceEvaluator):
        """Agreement with the teacher on texts that are not learned from."""

        def __init__(self) -> None:
            super().__init__()
            self.primary_metric = "agreement"

        def __call__(
            self, model: Any, output_path: str | None = None, epoch: float = -1, steps: int = -1
        ) -> dict[str, float]:
            vectors = model.encode(list(texts), show_progress_bar=False, convert_to_numpy=True)
            return {"agreement": float(agreement(vectors, target).mean())}

    return AgreementEvaluator()


def _make_reporter(bar: Progress, on_rows: OnRows | None) -> Any:
    from transformers import TrainerCallback

    class Reporter(TrainerCallback):
        """Show the steps on the bar, and send what the trainer logs to `on_rows`."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            bar.begin("training|steps", state.max_steps, state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            bar.advance(1)

        def on_log(
            self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any
        ) -> None:
            numbers = {
                f"train/{name}": value
                for name, value in (logs or {}).items()
                if isinstance(value, int | float)
            }
            send(on_rows, state.global_step, numbers)

    return Reporter()


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


def _head_of(student: Any, fitted_on: str) -> Head:
    """Return the student's dense layer as a head."""
    linear = student[2].linear
    weight = linear.weight.detach().double().cpu().numpy()
    bias = linear.bias.detach().double().cpu().numpy()
    return Head(np.zeros(weight.shape[1]), weight.T, fitted_on, bias)
