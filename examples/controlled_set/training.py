"""One model trained from a seed, with checkpoints and held-out losses written as it goes."""

from __future__ import annotations

import csv
import json
import math
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from controlled_set import architectures, scan
from controlled_set.text import BOS, MASK, SPECIAL, Streams

LOG = (
    "model",
    "step",
    "tokens_seen",
    "train_loss",
    "held_out_loss",
    "held_out_perplexity",
    "learning_rate",
    "seconds",
)
HELD_OUT_ROWS = 512


@dataclass(frozen=True)
class Plan:
    """What is the same for every model of the set."""

    steps: int = 4000
    batch: int = 256
    length: int = 128
    width: int = 128
    blocks: int = 12
    heads: int = 4
    learning_rate: float = 2e-3
    warmup: float = 0.05
    masked: float = 0.3
    seed: int = 0
    checkpoints: tuple[int, ...] = (0, 30, 125, 500, 1500)
    log_every: int = 250

    @property
    def saved(self) -> tuple[int, ...]:
        """The steps that are saved: the given ones before the end, and the end."""
        return (*(step for step in sorted(set(self.checkpoints)) if step < self.steps), self.steps)

    def rate(self, step: int) -> float:
        """Linear warm-up, then a cosine down to a tenth."""
        first = max(1, int(self.steps * self.warmup))
        if step < first:
            return self.learning_rate * (step + 1) / first
        done = (step - first) / max(1, self.steps - first)
        return self.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def windows(
    stream: Tensor, count: int, length: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Rows of `<s>` and text, and the token that follows each position. Drawn on the CPU: the same
    on every device."""
    starts = torch.randint(0, len(stream) - length, (count,), generator=generator)
    rows = stream[(starts[:, None] + torch.arange(length)).to(stream.device)].long()
    return torch.cat([torch.full_like(rows[:, :1], BOS), rows[:, :-1]], dim=1), rows


def masked(
    ids: Tensor, share: float, vocabulary: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """BERT's task: of the chosen tokens 8 in 10 become `<mask>`, 1 any token, 1 stays; the others
    are not predicted."""
    draw = torch.rand(ids.shape, generator=generator)
    other = torch.randint(len(SPECIAL), vocabulary, ids.shape, generator=generator)
    draw, other = draw.to(ids.device), other.to(ids.device)
    chosen = (draw < share) & (ids >= len(SPECIAL))
    shown = torch.where(draw < 0.8 * share, MASK, torch.where(draw < 0.9 * share, other, ids))
    return torch.where(chosen, shown, ids), torch.where(chosen, ids, -100)


def train(
    name: str,
    streams: Streams,
    plan: Plan,
    out: Path,
    device: torch.device,
    say: Callable[[str], None] = print,
) -> Path:
    """Train one model; its folder holds `stepN` folders and `log.csv`."""
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = architectures.build(
        name, streams.vocabulary, plan.width, plan.blocks, plan.heads, plan.length, plan.seed
    ).to(device)
    model.train()
    text, held = (
        torch.from_numpy(part.astype("int32")).to(device)
        for part in (streams.train, streams.held_out)
    )
    say(
        f"{name}: {architectures.size(model) / 1e6:.2f} M parameters, {len(text) / 1e6:.2f} M tokens of text, {device}"
    )
    probe = windows(held, 2, 16, torch.Generator().manual_seed(0))[0]
    if name == "mamba" and device.type == "cuda":
        say(
            f"{name}: the scan's kernels agree with transformers' forward to {scan.checked(model, probe):.1e}"
        )
    if architectures.sees_ahead(model, probe) != (name == "mlm"):
        raise RuntimeError(f"{name}: the attention mask is not the one wanted")

    optimizer = make_optimizer(model, plan, device)
    draws = torch.Generator().manual_seed(
        plan.seed + 1
    )  # the same texts in the same order for every model
    masks = torch.Generator().manual_seed(plan.seed + 2)
    autocast = (
        torch.autocast("cuda", dtype=torch.bfloat16) if device.type == "cuda" else nullcontext()
    )
    started, recent = time.perf_counter(), torch.zeros((), device=device)
    since = 0
    with (folder / "log.csv").open("w", newline="", encoding="utf-8") as file:
        log = csv.writer(file)
        log.writerow(LOG)
        for step in range(plan.steps + 1):
            if step in plan.saved or step % plan.log_every == 0:
                loss = held_out_loss(name, model, held, plan, autocast)
                train_loss = float(recent) / since if since else float("nan")
                recent, since = torch.zeros((), device=device), 0
                taken = time.perf_counter() - started
                rate = plan.rate(step)
                shown = "" if math.isnan(train_loss) else f"{train_loss:.4f}"
                seen = step * plan.batch * plan.length
                log.writerow(
                    [
                        name,
                        step,
                        seen,
                        shown,
                        f"{loss:.4f}",
                        f"{math.exp(loss):.3f}",
                        f"{rate:.2e}",
                        f"{taken:.1f}",
                    ]
                )
                file.flush()
                say(f"{name}: step {step}, held-out loss {loss:.3f}, {taken:.0f} s")
            if step in plan.saved:
                save(model, streams, folder / f"step{step}")
            if step == plan.steps:
                break
            for group in optimizer.param_groups:
                group["lr"] = plan.rate(step)
            ids, following = windows(text, plan.batch, plan.length, draws)
            with autocast:
                loss = batch_loss(name, model, ids, following, plan, masks)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
            recent, since = recent + loss.detach(), since + 1
    return folder


def save(model: nn.Module, streams: Streams, folder: Path) -> None:
    """A folder that transformers and layerscope read: float16 weights, configuration, tokenizer.
    Appears whole or not at all."""
    import transformers as hf

    draft = folder.with_name(f".{folder.name}")
    # `named_parameters` names the tied weights once.
    state = {
        key: value.detach().to("cpu", torch.float16) for key, value in model.named_parameters()
    }
    hf.utils.logging.disable_progress_bar()
    model.save_pretrained(draft, state_dict=state)
    config = json.loads((draft / "config.json").read_text(encoding="utf-8"))
    (draft / "config.json").write_text(
        json.dumps({**config, "dtype": "float16"}, indent=2) + "\n", encoding="utf-8"
    )
    names: dict[str, Any] = dict(
        zip(("pad_token", "bos_token", "eos_token", "mask_token"), SPECIAL, strict=True)
    )
    hf.PreTrainedTokenizerFast(
        tokenizer_file=str(streams.tokenizer), model_max_length=512, **names
    ).save_pretrained(draft)
    draft.rename(folder)


def batch_loss(
    name: str,
    model: nn.Module,
    ids: Tensor,
    following: Tensor,
    plan: Plan,
    generator: torch.Generator,
) -> Tensor:
    """The model's own loss on one batch: of the next tokens, or of masked ones."""
    targets = following
    if name == "mlm":
        ids, targets = masked(ids, plan.masked, model.config.vocab_size, generator)
    logits = model(input_ids=ids).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100)


@torch.no_grad()
def held_out_loss(name: str, model: nn.Module, held: Tensor, plan: Plan, autocast: Any) -> float:
    """Mean loss on the same held-out rows (and the same masks) every time."""
    model.eval()
    draws, masks = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    losses = []
    rows = min(HELD_OUT_ROWS, 2 * plan.batch)
    for _ in range(0, rows, plan.batch):
        ids, following = windows(held, plan.batch, plan.length, draws)
        with autocast:
            losses.append(float(batch_loss(name, model, ids, following, plan, masks)))
    model.train()
    return sum(losses) / len(losses)


def make_optimizer(model: nn.Module, plan: Plan, device: torch.device) -> torch.optim.Optimizer:
    """AdamW; no decay on norms, biases and Mamba's time constants."""
    named = list(model.named_parameters())
    decayed = [p for name, p in named if p.ndim >= 2 and not name.endswith("A_log")]
    plain = [p for name, p in named if p.ndim < 2 or name.endswith("A_log")]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        groups, lr=plan.learning_rate, betas=(0.9, 0.95), fused=device.type == "cuda"
    )
