"""A lesson: a student's folder, texts and what their teacher says of them, on disk; and the
training of the student on it.

Everything that the training needs and makes is in the lesson's folder, so that a training that was
stopped is resumed.

The training is sentence-transformers' own; what is here is the loss, and when to stop.
"""

from __future__ import annotations

import json
import os
import pickle
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

from layerscope.core.heads import unit
from layerscope.core.json import read_json
from layerscope.errors import RunFolderError, UnknownNameError
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
_SAVE_EVERY = 300.0  # seconds between two states to go on from

OnLog = Callable[[dict[str, Any]], None]
START, BEST, TEXTS, TARGET, PLAN = "start", "best", "texts.json", "target.npy", "plan.json"


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


@dataclass(frozen=True)
class Lesson:
    """A lesson in its folder."""

    folder: Path

    def write(self, texts: Sequence[str], target: np.ndarray, facts: Mapping[str, Any]) -> None:
        """Write texts and their target, and `facts`: how many of the last texts are `watched` to
        say when to stop, the `seed`, the `device`, and settings of the trainer that are `given`.

        What a stopped training of the same folder reached is kept.
        """
        self.folder.mkdir(exist_ok=True)
        known = self.update() if (self.folder / PLAN).is_file() else {}
        atomic.write_json(self.folder / TEXTS, list(texts))
        atomic.write(
            self.folder / TARGET, lambda stream: np.save(stream, unit(target).astype(np.float32))
        )
        atomic.write_json(self.folder / PLAN, {**known, **facts, "texts": len(texts)})

    def update(self, **facts: Any) -> dict[str, Any]:
        """What is known of the lesson, with more."""
        known = {**read_json(self.folder / PLAN), **facts}
        if facts:
            atomic.write_json(self.folder / PLAN, known)
        return known

    @property
    def best(self) -> Path:
        """The best student so far; before the first look, the one that it began with."""
        step = self.update().get("best_step")
        return self.folder / (START if step is None else f"{BEST}-{step}")

    def remove(self) -> None:
        """Remove the lesson's folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(
        self,
        minutes: float | None = None,
        on_step: Callable[[int, int], None] | None = None,
        on_log: OnLog | None = None,
    ) -> dict[str, Any]:
        """Train the student, or resume its training; returns the lesson's facts. The best student
        is in `self.best`.

        `on_step` gets the steps that are done and how many there are at most, `on_log` what the
        trainer logs at a step.
        """
        self.plan_steps(minutes)
        trainer = self._trainer(on_step, on_log)
        saved = self.update().get("saved")  # a checkpoint that was written whole
        last = None if saved is None else str(self.folder / saved)
        try:
            with quiet():
                trainer.train(resume_from_checkpoint=last)
        except pickle.UnpicklingError as error:  # a stranger's: no code of it was run
            raise RunFolderError(
                f"{last} cannot be resumed from. Remove {self.folder}, and run it again."
            ) from error
        return self.update(steps=trainer.state.global_step)

    def plan_steps(self, minutes: float | None) -> None:
        """Say how many steps the time allows, from a few that are tried out and forgotten; once, so
        that a schedule stands."""
        plan = self.update()
        if "most" in plan:
            return
        student, texts, target = self._open()
        learned = len(texts) - plan["watched"]
        batch, half, seconds = (
            _batch(learned, student.device, plan["given"]),
            fast_half(student.device),
            [],
        )
        for turn in range(TRIALS):
            some = [(turn * batch + i) % learned for i in range(batch)]
            start = time.perf_counter()
            with torch.autocast(student.device.type, dtype=torch.bfloat16, enabled=half):
                fed = student.preprocess([texts[i] for i in some])
                fed = {
                    name: value.to(student.device) if isinstance(value, Tensor) else value
                    for name, value in fed.items()
                }
                vectors, order = embed_by_length(student, fed)
            similarity_loss(
                vectors, torch.as_tensor(target[some][order], device=student.device)
            ).backward()
            student.zero_grad(set_to_none=True)
            if student.device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        each = 1.15 * min(seconds)  # the update of the weights comes on top
        most = min(STEPS, plan["given"].get("max_steps", STEPS))
        if minutes is not None:
            most = max(1, min(most, int(60 * minutes / each)))
        self.update(most=most, seconds=each)

    def _open(self) -> tuple[Any, list[str], np.ndarray]:
        """The student as it begins, in full precision; the texts; what the teacher says of them."""
        with quiet():
            student = load_folder(self.folder / START).float().to(self.update()["device"])
        student.model_card_data.widget = [
            {"text": "A text."}
        ]  # else examples are taken from the texts of the user
        student[0].auto_model.get_input_embeddings().requires_grad_(
            False
        )  # most words of a language are in no lesson
        return (
            student,
            json.loads((self.folder / TEXTS).read_text(encoding="utf-8")),
            np.load(self.folder / TARGET),
        )

    def _trainer(
        self, on_step: Callable[[int, int], None] | None, on_log: OnLog | None = None
    ) -> Any:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            from datasets import Dataset
            from sentence_transformers import (
                SentenceTransformerTrainer,
                SentenceTransformerTrainingArguments,
            )
        except ImportError as error:
            raise missing("train") from error
        plan, (student, texts, target) = self.update(), self._open()
        student.save_pretrained = partial(
            student.save_pretrained, create_model_card=False
        )  # nobody reads those of checkpoints
        learned, steps = len(texts) - plan["watched"], plan["most"]
        look, batch = max(1, steps // LOOKS), _batch(learned, student.device, plan["given"])
        given = {
            "learning_rate": RATE * (batch / BATCH) ** 0.5, "learning_rate_mapping": _head_rates(student[2].linear),
            "warmup_steps": min(WARMUP, steps // 10), "bf16": fast_half(student.device), "seed": plan["seed"],
            "per_device_train_batch_size": batch, "dataloader_drop_last": True,
            "eval_strategy": "steps", "eval_steps": look, "logging_steps": look, "save_strategy": "steps", "save_total_limit": 2,
            "save_steps": max(1, int(_SAVE_EVERY / max(plan["seconds"], 1e-3))), "report_to": "none", "disable_tqdm": True,
            "use_cpu": student.device.type == "cpu", **check_settings(plan["given"]), "max_steps": steps,
        }  # fmt: skip
        args = SentenceTransformerTrainingArguments(output_dir=str(self.folder), **given)
        if args.n_gpu > 1:
            args._n_gpu = 1  # the loss reads a batch by itself; the model stays on its GPU
        with quiet():
            trainer = SentenceTransformerTrainer(
                model=student, args=args, loss=_loss(student, target),
                train_dataset=Dataset.from_dict({"text": texts[:learned], "label": list(range(learned))}),
                evaluator=_evaluator(texts[learned:], target[learned:]), callbacks=[_keeper(self, student, on_step, on_log)],
            )  # fmt: skip
        for callback in list(
            trainer.callback_handler.callbacks
        ):  # they print, and write a model card that is not used
            if (
                type(callback).__name__ == "PrinterCallback"
                or "ModelCard" in type(callback).__name__
            ):
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


_OURS = ("output_dir", "eval_strategy", "save_strategy", "push_to_hub", "load_best_model_at_end")


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


def _keeper(
    lesson: Lesson, student: Any, on_step: Callable[[int, int], None] | None, on_log: OnLog | None
) -> Any:
    from transformers import TrainerCallback

    class Keeper(TrainerCallback):
        """Writes the best student so far, and stops when none has been better for a while."""

        def __init__(self) -> None:
            self.curve = lesson.update().get("curve", [])

        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if on_step is not None:
                on_step(state.global_step, state.max_steps)

        def on_log(
            self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any
        ) -> None:
            if on_log is not None and logs:
                on_log({"step": state.global_step, **logs})

        def on_evaluate(
            self, args: Any, state: Any, control: Any, metrics: Any = None, **rest: Any
        ) -> None:
            step, score = state.global_step, float(metrics["eval_agreement"])
            earlier = [
                look for look in self.curve if look[0] < step
            ]  # later ones are of a run that was stopped
            self.curve = [*earlier, [step, score]]
            # a run that was stopped may have taken away a student that was the best before it went
            # on
            kept = [
                i for i, (at, _) in enumerate(earlier) if (lesson.folder / f"{BEST}-{at}").is_dir()
            ]
            best = max([*kept, len(earlier)], key=lambda i: self.curve[i][1])
            if best == len(earlier):
                before, name = lesson.best, f"{BEST}-{step}"
                # of a process that was killed while it wrote
                shutil.rmtree(lesson.folder / name, ignore_errors=True)
                with quiet():
                    student.save_pretrained(str(lesson.folder / name))
                lesson.update(curve=self.curve, best_step=step)
                if before.name not in (name, START):
                    shutil.rmtree(before, ignore_errors=True)
            else:
                lesson.update(curve=self.curve, best_step=self.curve[best][0])
            control.should_training_stop = (
                control.should_training_stop or len(earlier) - best >= PATIENCE
            )

        def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            lesson.update(saved=f"checkpoint-{state.global_step}")

    return Keeper()
