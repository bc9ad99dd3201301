"""One kind of probe at every layer, from kept states to the classes it names for the test items."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from layerscope.models import LoadedModel
from layerscope.probing.examples import Split
from layerscope.probing.heads import HEADS, NEIGHBORS, neighbor_ranks
from layerscope.probing.states import States, statistics
from layerscope.probing.tables import Predictions
from layerscope.probing.training import Phase, ProbeRecipe, Task, rank_classes, read_phase, train, write_phase

KNN = "knn"
_WRITE_EVERY = 20.0  # seconds of training that a stop may cost


def probes() -> dict[str, str]:
    """Every kind of probe and what it is, in words."""
    trained = {name: head.summary for name, head in HEADS.items()}
    return {**trained, KNN: f"the {NEIGHBORS} training items with the highest cosine of pooled vectors vote; nothing is trained"}


def pooling_of(probe: str) -> str:
    """What of the states a probe reads."""
    return "summary" if probe == KNN else HEADS[probe].pooling


def head_count(model: LoadedModel) -> int:
    """Heads of the attention probe: as many as the model's own attention has, else the most up to 12 that divide its width."""
    config = getattr(model.module, "config", None)
    for name in ("num_attention_heads", "n_head", "heads"):
        named = getattr(config, name, None)
        if isinstance(named, int) and named > 0 and model.width % named == 0:
            return named
    return max(n for n in range(1, 13) if model.width % n == 0)


def vote(states: States, labels: torch.Tensor, split: Split, layers: Sequence[int], classes: int, batch: int) -> Predictions:
    """Nearest neighbors at every layer: training and validation items vote on the test items, training items on the others."""
    clock = time.perf_counter()
    parts = {name: getattr(split, name) for name in ("train", "validation", "test")}
    vectors = {name: _vectors(states, list(layers), items, batch) for name, items in parts.items()}
    known = {name: labels[torch.from_numpy(items).to(labels.device)] for name, items in parts.items()}
    bank = torch.cat([known["train"], known["validation"]])
    ranks, right = [], []
    with torch.inference_mode():
        for train, validation, test in zip(*vectors.values(), strict=True):
            ranks.append(neighbor_ranks(torch.cat([train, validation]), bank, test, classes)[:, :5].cpu().numpy())
            first = neighbor_ranks(train, known["train"], validation, classes)[:, 0]
            right.append(float((first == known["validation"]).float().mean()))
    nothing, none = np.full(len(layers), np.nan), np.zeros(len(layers), dtype=np.int64)
    return Predictions(np.stack(ranks).astype(np.int32), np.array(right), nothing, none, none, time.perf_counter() - clock)


def _vectors(states: States, layers: list[int], items: np.ndarray, batch: int) -> torch.Tensor:
    parts = []
    for start in range(0, len(items), batch):
        pieces = [x[:, :, 0].clone() for _, x, _ in states.read(layers, items[start : start + batch])]
        parts.append(torch.cat(pieces))
    return torch.cat(parts, dim=1)


def fit(
    probe: str,
    model: LoadedModel,
    states: States,
    labels: torch.Tensor,
    split: Split,
    layers: Sequence[int],
    classes: int,
    recipe: ProbeRecipe,
    file: Path | None = None,
    tell: Callable[[Phase], None] = lambda phase: None,
) -> Predictions:
    """Train one kind of probe at some layers together, and let it name classes for the test items.

    With a `file` a stopped training goes on from its last written epoch.
    """
    places = list(layers)
    batch = recipe.batch or ProbeRecipe.batch_for(len(split.train))
    if probe == KNN:
        return vote(states, labels, split, places, classes, 2 * batch)
    head = HEADS[probe](model.width, head_count(model), classes)
    norms = statistics(states, places, split.train, 2 * batch)
    task = Task(head, states, places, labels, split.train, split.validation, norms, recipe)
    earlier = None if file is None else read_phase(file, states.device)
    written = time.perf_counter()

    def after(phase: Phase) -> None:
        nonlocal written
        if file is not None and time.perf_counter() - written > _WRITE_EVERY:
            write_phase(file, phase)
            written = time.perf_counter()
        tell(phase)

    found = train(task, earlier, after)
    ranks = rank_classes(task, found.parameters, split.test)
    return Predictions(ranks, found.validation, found.rate, found.epoch, found.epochs, found.seconds)
