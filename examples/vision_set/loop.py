"""The training loop: one recipe for all three objectives."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from vision_set.images import FLIPS, Images, augmented, prepared
from vision_set.objectives import Objective, Supervised


@dataclass(frozen=True)
class Recipe:
    """AdamW; a linear warm-up over a twentieth of the steps, then half a cosine to zero."""

    steps: int
    batch: int
    rate: float = 1e-3
    weight_decay: float = 0.05
    seed: int = 0


def train(
    make: Callable[[], Objective],
    images: Images,
    recipe: Recipe,
    device: torch.device,
    say: Callable[[str], None] = print,
) -> tuple[Objective, dict[str, Any]]:
    """A trained objective and what is to be told of it."""
    torch.manual_seed(recipe.seed)
    objective = make()
    objective.start()
    objective = objective.to(device).train()
    moments = images.moments()
    pixels = prepared(images.train, moments, device)
    labels = torch.from_numpy(images.train_labels).to(device)
    generator = torch.Generator(device=device).manual_seed(recipe.seed)
    optimizer = torch.optim.AdamW(
        _groups(objective, recipe.weight_decay),
        lr=recipe.rate,
        betas=(0.9, 0.95),
        fused=device.type == "cuda",
    )
    shift = max(1, images.size // 14)
    losses: list[tuple[int, float]] = []
    clock, total = time.perf_counter(), torch.zeros((), device=device)
    every = max(1, recipe.steps // 20)
    for step in range(recipe.steps):
        chosen = torch.randint(0, len(pixels), (recipe.batch,), generator=generator, device=device)
        batch = augmented(pixels[chosen], images.name in FLIPS, shift, generator)
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * _schedule(step, recipe.steps)
        with _precision(device):
            loss = objective.loss(batch, labels[chosen], generator)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        optimizer.step()
        total += loss.detach()
        if (step + 1) % every == 0:
            losses.append((step + 1, float(total) / every))
            total.zero_()
            say(
                f"  step {step + 1} of {recipe.steps}: loss {losses[-1][1]:.4f}, {time.perf_counter() - clock:.1f} s"
            )
    objective.eval()
    facts: dict[str, Any] = {
        "seconds": time.perf_counter() - clock,
        "losses": losses,
        "trunk_parameters": sum(p.numel() for p in objective.trunk.parameters()),
        "parameters_in_training": sum(p.numel() for p in objective.parameters()),
    }
    if isinstance(objective, Supervised):
        facts["test_accuracy_of_its_own_classifier"] = _accuracy(objective, images, moments, device)
    return objective, facts


def _schedule(step: int, steps: int) -> float:
    warm = max(1, steps // 20)
    return (
        (step + 1) / warm
        if step < warm
        else 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
    )


def _groups(module: torch.nn.Module, decay: float) -> list[dict[str, Any]]:
    """Weight decay for matrices only."""
    trained = [p for p in module.parameters() if p.requires_grad]
    matrices, others = [p for p in trained if p.dim() > 1], [p for p in trained if p.dim() <= 1]
    return [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


def _precision(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    return (
        torch.autocast("cuda", torch.bfloat16)
        if device.type == "cuda"
        else contextlib.nullcontext()
    )


@torch.inference_mode()
def _accuracy(
    objective: Supervised, images: Images, moments: tuple[float, float], device: torch.device
) -> float:
    pixels = prepared(images.test, moments, device)
    labels = torch.from_numpy(images.test_labels).to(device)
    hits = sum(
        int((objective.scores(pixels[i : i + 1000]).argmax(-1) == labels[i : i + 1000]).sum())
        for i in range(0, len(pixels), 1000)
    )
    return hits / len(pixels)
