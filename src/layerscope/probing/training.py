"""The probes of all layers (and, in the trial, of all learning rates), trained together on the same batches.

Each probe has parameters and moments of its own, begins at the same values and sees the same items in the same order: a layer
trained alone with the same seed becomes the same probe. The validation part alone says which learning rate a layer gets and
after which epoch it is taken; the test part is not read here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from layerscope.errors import LayerscopeError
from layerscope.probing.heads import Head, Parameters
from layerscope.probing.optimiser import adamw_step
from layerscope.probing.recipe import Recipe, schedule
from layerscope.probing.states import States, Statistics

STOP_BELOW = 0.15
"""No layer stops while its learning rate is above this share of its peak. The last steps, with small rates, bring points of
accuracy: a layer that left before them would look worse than its neighbours for no other reason."""


@dataclass
class Phase:
    """A training under way. Parameters and moments are of the `live` layers only; the rest is of all layers (L, R)."""

    trial: bool
    rates: np.ndarray  # (L, R)
    live: np.ndarray
    parameters: Parameters
    first: Parameters
    second: Parameters
    best: Parameters
    accuracy: np.ndarray  # best so far on the validation part
    loss: np.ndarray  # at that epoch
    at: np.ndarray  # that epoch, from 1
    stopped: np.ndarray  # (L,) the last epoch that was trained; 0: still going
    epoch: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Trained:
    """One probe per layer, and how it was chosen."""

    parameters: Parameters  # (L, 1, …)
    rate: np.ndarray
    validation: np.ndarray
    epoch: np.ndarray
    epochs: np.ndarray
    seconds: float


@dataclass(frozen=True)
class Task:
    """What is learnt from what: a kind of probe, states at some places, class numbers by item, and the parts."""

    head: Head
    states: States
    places: list[int]
    labels: Tensor
    train: np.ndarray
    validation: np.ndarray
    norms: Statistics
    recipe: Recipe
    batch: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch", self.recipe.batch or Recipe.batch_for(len(self.train)))


def train(task: Task, phase: Phase | None = None, after_epoch: Callable[[Phase], None] = lambda phase: None) -> Trained:
    """Try the learning rates, then train every layer with its own until all have stopped. `phase` is where to go on."""
    recipe = task.recipe
    if phase is None:
        rates = np.tile(recipe.learning_rates, (len(task.places), 1))
        phase = _begin(task, rates, trial=rates.shape[1] > 1)
    if phase.trial:
        _go_on(task, phase, recipe.trial, recipe.trial, after_epoch)
        spent = phase.seconds
        phase = _begin(task, _chosen_rates(phase), trial=False)
        phase.seconds = spent
    _go_on(task, phase, recipe.epochs, recipe.patience, after_epoch)
    if (phase.at == 0).any():
        raise LayerscopeError("the loss of a probe is not finite. Use smaller --learning-rates, or --final-norm applied.")
    last = np.where(phase.stopped > 0, phase.stopped, phase.epoch)
    return Trained(phase.best, phase.rates[:, 0], phase.accuracy[:, 0], phase.at[:, 0], last, phase.seconds)


def _begin(task: Task, rates: np.ndarray, trial: bool) -> Phase:
    """Every probe at the same values."""
    generator = torch.Generator().manual_seed(task.recipe.seed)
    start = {name: value.to(task.states.device) for name, value in task.head.start(generator).items()}
    copies = [{name: value.expand(*rates.shape, *value.shape).clone() for name, value in start.items()} for _ in range(4)]
    for moments in copies[1:3]:
        for value in moments.values():
            value.zero_()
    return Phase(
        trial=trial,
        rates=rates,
        live=np.arange(len(rates)),
        parameters=copies[0],
        first=copies[1],
        second=copies[2],
        best=copies[3],
        accuracy=np.full(rates.shape, -1.0),
        loss=np.full(rates.shape, np.inf),
        at=np.zeros(rates.shape, dtype=np.int64),
        stopped=np.zeros(len(rates), dtype=np.int64),
    )


def _go_on(task: Task, phase: Phase, epochs: int, patience: int, after_epoch: Callable[[Phase], None]) -> None:
    steps = math.ceil(len(task.train) / task.batch)
    while phase.epoch < epochs and len(phase.live):
        clock = time.perf_counter()
        rng = np.random.default_rng([task.recipe.seed, 1, int(phase.trial), phase.epoch])
        for step, items in enumerate(epoch_batches(task.train, task.batch, rng)):
            _step(task, phase, items, phase.epoch * steps + step, epochs * steps)
        accuracy, loss = judge(task, phase)
        phase.epoch += 1
        slow = schedule(phase.epoch * steps, epochs * steps) < STOP_BELOW
        _remember(phase, accuracy, loss, patience if slow else epochs)
        phase.seconds += time.perf_counter() - clock
        after_epoch(phase)


def epoch_batches(items: np.ndarray, batch: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Every item once, in batches of neighbours: the items are in a random order already, and where a batch begins is drawn anew.

    Neighbours lie together in memory, so that a batch need not be gathered first.
    """
    turned = np.roll(items, -int(rng.integers(len(items))))
    for start in rng.permutation(math.ceil(len(items) / batch)):
        yield turned[start * batch : (start + 1) * batch]


def _step(task: Task, phase: Phase, items: np.ndarray, step: int, steps: int) -> None:
    wanted = task.labels[torch.from_numpy(items).to(task.labels.device)]
    share = schedule(step, steps)
    for piece, x, mask in task.states.read([task.places[i] for i in phase.live], items):
        at = phase.live[piece]
        now = {name: value[piece].detach().requires_grad_() for name, value in phase.parameters.items()}
        with torch.enable_grad():
            scores = task.head.scores(now, x, mask, task.norms.mean[at], task.norms.scale[at])
            loss = _cross_entropy(scores, wanted).mean(1).sum()  # a sum: no layer's gradient depends on another's
            grads = torch.autograd.grad(loss, list(now.values()))
        rates = torch.from_numpy(phase.rates[at] * share).to(x)
        adamw_step(phase.parameters, phase.first, phase.second, piece, grads, rates, step + 1, task.recipe.weight_decay)


def _cross_entropy(scores: Tensor, wanted: Tensor) -> Tensor:
    """(G, B, R) from scores (G, B, R, C) and classes (B,)."""
    picked = scores.gather(-1, wanted.view(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)).squeeze(-1)
    return scores.logsumexp(-1) - picked


def judge(task: Task, phase: Phase) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy and loss (live layers, R) on the validation part."""
    hits = torch.zeros(len(phase.live), phase.rates.shape[1], dtype=torch.int64, device=task.states.device)
    losses = torch.zeros(hits.shape, device=task.states.device)
    with torch.inference_mode():
        for start in range(0, len(task.validation), 2 * task.batch):
            some = task.validation[start : start + 2 * task.batch]
            wanted = task.labels[torch.from_numpy(some).to(task.labels.device)]
            for piece, x, mask in task.states.read([task.places[i] for i in phase.live], some):
                at = phase.live[piece]
                now = {name: value[piece] for name, value in phase.parameters.items()}
                scores = task.head.scores(now, x, mask, task.norms.mean[at], task.norms.scale[at])
                hits[piece] += (scores.argmax(-1) == wanted[None, :, None]).sum(1)
                losses[piece] += _cross_entropy(scores, wanted).sum(1)
    return hits.cpu().numpy() / len(task.validation), losses.double().cpu().numpy() / len(task.validation)


def _remember(phase: Phase, accuracy: np.ndarray, loss: np.ndarray, patience: int) -> None:
    """Keep what is best on the validation part (higher accuracy, then lower loss); let go of layers that wait in vain."""
    live = phase.live
    better = (accuracy > phase.accuracy[live]) | ((accuracy == phase.accuracy[live]) & (loss < phase.loss[live]))
    better &= np.isfinite(loss)
    new = torch.from_numpy(better)
    for name, value in phase.parameters.items():
        chosen, layers = new.to(value.device), torch.from_numpy(live).to(value.device)
        kept = phase.best[name][layers]
        kept[chosen] = value[chosen]
        phase.best[name][layers] = kept
    for held, seen in ((phase.accuracy, accuracy), (phase.loss, loss), (phase.at, np.full(loss.shape, phase.epoch))):
        held[live] = np.where(better, seen, held[live])
    waited = (phase.epoch - phase.at[live] >= patience).all(axis=1)
    if waited.any():
        phase.stopped[live[waited]] = phase.epoch
        phase.live = live[~waited]
        for group in (phase.parameters, phase.first, phase.second):
            for name, value in group.items():
                group[name] = value[torch.from_numpy(~waited).to(value.device)].contiguous()


def _chosen_rates(phase: Phase) -> np.ndarray:
    """(L, 1): the learning rate with the best validation accuracy; ties by loss, then the smaller one."""
    order = [np.lexsort((phase.rates[i], phase.loss[i], -phase.accuracy[i]))[0] for i in range(len(phase.rates))]
    return np.take_along_axis(phase.rates, np.array(order)[:, None], axis=1)


def rank_classes(task: Task, parameters: Parameters, items: np.ndarray) -> np.ndarray:
    """Classes from the likeliest to the least (L, items, up to 5) under one probe per layer."""
    out = np.zeros((len(task.places), len(items), min(5, task.head.classes)), dtype=np.int32)
    with torch.inference_mode():
        for start in range(0, len(items), 2 * task.batch):
            some = items[start : start + 2 * task.batch]
            for piece, x, mask in task.states.read(task.places, some):
                now = {name: value[piece] for name, value in parameters.items()}
                scores = task.head.scores(now, x, mask, task.norms.mean[piece], task.norms.scale[piece]).squeeze(2)
                top = scores.argsort(dim=-1, descending=True, stable=True)[..., : out.shape[2]]
                out[piece, start : start + len(some)] = top.cpu().numpy()
    return out
