"""Training one model of the controlled set from a seed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerscope_paper.controlled.model import BOS, EOS, MASK, SPECIAL, build

OnStep = Callable[[int, nn.Module, float], None]
_HELD_OUT_SHARE = 0.05


@dataclass(frozen=True)
class Plan:
    """The settings that all models of the set share."""

    steps: int = 1500
    batch: int = 256
    length: int = 128
    width: int = 128
    blocks: int = 12
    heads: int = 4
    learning_rate: float = 2e-3
    masked: float = 0.3
    seed: int = 0

    def rate(self, step: int) -> float:
        """Return the learning rate: linear warm-up over a twentieth of the steps, then a cosine
        down to a tenth."""
        warmup = max(1, self.steps // 20)
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        progress = (step - warmup) / max(1, self.steps - warmup)
        return self.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


@dataclass(frozen=True)
class Streams:
    """Training and held-out tokens, each one long row of texts that end in `</s>`; the held-out
    texts; the tokenizer."""

    train: Tensor
    held_out: Tensor
    held_out_texts: list[str]
    tokenizer: Any


def read_texts(texts: Iterable[str], vocabulary: int = 4096) -> Streams:
    """Split texts by their hash (one in twenty is held out), and train a tokenizer on the
    others."""
    import hashlib

    sides: tuple[list[str], list[str]] = ([], [])
    for text in dict.fromkeys(texts):
        drawn = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32
        sides[drawn < _HELD_OUT_SHARE].append(text)
    tokenizer = _train_tokenizer(sides[0], vocabulary)
    streams = []
    for side in sides:
        rows = tokenizer(side, add_special_tokens=False, verbose=False)["input_ids"] if side else []
        streams.append(torch.tensor([token for ids in rows for token in [*ids, EOS]]))
    return Streams(streams[0], streams[1], sides[1], tokenizer)


def _train_tokenizer(texts: list[str], vocabulary: int) -> Any:
    """Train a byte-level BPE tokenizer; every text starts with `<s>`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    names = ("pad_token", "bos_token", "eos_token", "mask_token")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=512, **dict(zip(names, SPECIAL, strict=True))
    )


def draw_windows(
    stream: Tensor, count: int, length: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw rows of `<s>` and text, and the token that follows each position. The draws are the same
    on every device."""
    starts = torch.randint(0, len(stream) - length, (count,), generator=generator)
    rows = stream[(starts[:, None] + torch.arange(length)).to(stream.device)].long()
    return torch.cat([torch.full_like(rows[:, :1], BOS), rows[:, :-1]], dim=1), rows


def mask_tokens(
    ids: Tensor, share: float, vocabulary: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Mask tokens as BERT does: of the chosen ones 8 in 10 become `<mask>`, 1 any token, 1 stays;
    the others are not predicted."""
    draw = torch.rand(ids.shape, generator=generator).to(ids.device)
    random = torch.randint(len(SPECIAL), vocabulary, ids.shape, generator=generator).to(ids.device)
    chosen = (draw < share) & (ids >= len(SPECIAL))
    shown = torch.where(draw < 0.8 * share, MASK, torch.where(draw < 0.9 * share, random, ids))
    return torch.where(chosen, shown, ids), torch.where(chosen, ids, -100)


def batch_loss(
    objective: str, model: nn.Module, stream: Tensor, plan: Plan, draws: tuple[torch.Generator, ...]
) -> Tensor:
    """Return the loss on a batch drawn from a stream: of the next tokens, or of masked ones."""
    ids, targets = draw_windows(stream, plan.batch, plan.length, draws[0])
    if objective == "mlm":
        vocab_size: Any = model.config.vocab_size  # type: ignore[union-attr]
        ids, targets = mask_tokens(targets, plan.masked, vocab_size, draws[1])
    logits = model(input_ids=ids).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100)


@torch.no_grad()
def held_out_loss(objective: str, model: nn.Module, streams: Streams, plan: Plan) -> float:
    """Return the mean loss on held-out rows; rows and masks are the same in every call."""
    model.eval()
    stream = streams.held_out.to(next(model.parameters()).device)
    draws = _generators(0)
    losses = [float(batch_loss(objective, model, stream, plan, draws)) for _ in range(2)]
    model.train()
    return float(np.mean(losses))


def train(
    objective: str,
    streams: Streams,
    plan: Plan,
    *,
    penalty: tuple[float, list[int]] | None = None,
    on_step: OnStep | None = None,
) -> tuple[nn.Module, float]:
    """Train a model; return it and its held-out loss.

    `penalty`: a weight and layers for `LayerPenalty`. `on_step` is called before every step and
    after the last, with the step, the model and the last loss.
    """
    from layerscope_paper.controlled.penalty import LayerPenalty

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    vocabulary = len(streams.tokenizer)
    shape = (plan.width, plan.blocks, plan.heads, plan.length)
    model = build(objective, vocabulary, *shape, plan.seed).to(device).train()
    optimizer = _make_optimizer(model, plan)
    # the same texts in the same order, and the same masks, for every model of a seed
    draws = _generators(plan.seed + 1)
    stream = streams.train.to(device)
    autocast = torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
    loss = torch.tensor(math.nan)
    with LayerPenalty(model, *penalty) if penalty else nullcontext() as term:
        for step in range(plan.steps):
            if on_step is not None:
                on_step(step, model, float(loss.detach()))
            for group in optimizer.param_groups:
                group["lr"] = plan.rate(step)
            with autocast:
                loss = batch_loss(objective, model, stream, plan, draws)
                total = loss if term is None else loss + term.term()
            optimizer.zero_grad(set_to_none=True)
            total.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
    if on_step is not None:
        on_step(plan.steps, model, float(loss.detach()))
    return model, held_out_loss(objective, model, streams, plan)


def _generators(seed: int) -> tuple[torch.Generator, ...]:
    return tuple(torch.Generator().manual_seed(seed + k) for k in (0, 1))


def _make_optimizer(model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
    """Return AdamW without decay on norms, biases and Mamba's time constants."""
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[parameter.ndim >= 2 and not name.endswith("A_log")].append(parameter)
    return torch.optim.AdamW(
        [
            {"params": groups[True], "weight_decay": 0.1},
            {"params": groups[False], "weight_decay": 0.0},
        ],
        lr=plan.learning_rate,
        betas=(0.9, 0.95),
    )


def save(model: nn.Module, tokenizer: Any, folder: Path) -> None:
    """Write a folder that transformers and layerscope read: float16 weights, configuration,
    tokenizer."""
    state = {
        name: value.detach().to("cpu", torch.float16) for name, value in model.named_parameters()
    }
    model.save_pretrained(folder, state_dict=state)  # type: ignore[operator]
    file = folder / "config.json"
    config = {**json.loads(file.read_text(encoding="utf-8")), "dtype": "float16"}
    file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tokenizer.save_pretrained(folder)
