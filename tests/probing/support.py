"""States made by hand: probes on them need no model."""

from __future__ import annotations

import numpy as np
import torch

from layerscope.probing.heads import HEADS
from layerscope.probing.states import CachedStates, statistics
from layerscope.probing.training import Phase, ProbeRecipe, Task, rank_classes, train

CLASSES, WIDTH, TOKENS = 4, 16, 6


def made_states(
    items: int, layers: int, holds: dict[int, str], seed: int = 0
) -> tuple[torch.Tensor, np.ndarray]:
    """Noise (layers, items, tokens, D) and classes; layer k holds the class in the `mean`, in one
    `token`, or nowhere."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, items)
    patterns = rng.standard_normal((CLASSES, WIDTH)) * 2
    states = rng.standard_normal((layers, items, TOKENS, WIDTH))
    for layer, where in holds.items():
        if where == "mean":
            states[layer] += patterns[labels][:, None]
        else:  # one marked token, at a random place, tells the class; the others tell any
            place = rng.integers(0, TOKENS, items)
            told = rng.integers(0, CLASSES, (items, TOKENS))
            told[np.arange(items), place] = labels
            states[layer] += patterns[told]
            states[layer, np.arange(items), place, 0] += 12
    return torch.from_numpy(states).float(), labels


def task_on(
    states: torch.Tensor,
    labels: np.ndarray,
    probe: str,
    layers: list[int] | None = None,
    recipe: ProbeRecipe | None = None,
    mask: torch.Tensor | None = None,
) -> tuple[Task, np.ndarray]:
    """A probe on hand-made states: the first 60 % train, 15 % choose, the rest judge."""
    count = len(labels)
    a, b = int(0.6 * count), int(0.75 * count)
    read = states if probe == "attention" else states.mean(2, keepdim=True)
    kept = CachedStates(read, mask, torch.device("cpu"))
    places = list(range(len(states))) if layers is None else layers
    head = HEADS[probe](WIDTH, 4, CLASSES)
    norms = statistics(kept, places, np.arange(a), 64)
    chosen = recipe or ProbeRecipe(learning_rates=(3e-3, 2e-2), trial=2, epochs=12, patience=4)
    task = Task(
        head, kept, places, torch.from_numpy(labels), np.arange(a), np.arange(a, b), norms, chosen
    )
    return task, np.arange(b, count)


def accuracies(task: Task, found: Phase, items: np.ndarray) -> np.ndarray:
    """Test accuracy by layer."""
    return (rank_classes(task, found.best, items)[:, :, 0] == task.labels.numpy()[items]).mean(1)


def trained(task: Task) -> Phase:
    """The probes of a task."""
    return train(task)
