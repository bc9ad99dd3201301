"""The probes of all layers (and, in the trial, of all learning rates), trained together on the same
batches.

Each probe has parameters and moments of its own, starts from the same values and sees the same
items in the same order: a layer trained alone with the same seed becomes the same probe. The
validation part alone decides which learning rate a layer gets and after which epoch it is taken;
the test part is not read here. A training that was stopped is a file.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.models import LoadedModel
from layerscope.probing.examples import Split
from layerscope.probing.heads import HEADS, NEIGHBORS, Head, Parameters, StateBatch, neighbor_ranks
from layerscope.probing.run import Predictions
from layerscope.probing.states import States, Statistics, statistics
from layerscope.store import checked


@dataclass(frozen=True)
class ProbeRecipe:
    """AdamW; a linear warm-up over a tenth of the steps, then half a cosine to zero.

    Every learning rate is tried with a whole schedule of `trial` epochs; each layer then starts
    over with the one that was best on the validation part and trains for up to `epochs`; once its
    rate has come down, it stops when nothing has been gained there for `patience` epochs. The epoch
    that was best there is the one that counts. `batch` 0 means: as `batch_for` says.
    """

    learning_rates: tuple[float, ...] = (2e-3, 1e-2, 5e-2)
    trial: int = 3
    epochs: int = 15
    patience: int = 5
    batch: int = 0
    weight_decay: float = 0.1
    seed: int = 0

    def batch_for(self, items: int) -> int:
        """Return the items per step; by default 256, fewer of a small training part so that an
        epoch has about 16 steps.

        >>> ProbeRecipe().batch_for(60000), ProbeRecipe().batch_for(1000), ProbeRecipe().batch_for(50)
        (256, 62, 32)
        """
        return self.batch or min(256, max(32, items // 16))

    def check(self) -> None:
        """Refuse what cannot work."""
        if not self.learning_rates or any(
            not (math.isfinite(rate) and rate > 0) for rate in self.learning_rates
        ):
            raise InvalidValueError(
                f"learning rates must be numbers above 0, not {list(self.learning_rates)}."
            )
        for name in ("trial", "epochs", "patience"):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.batch < 0:
            raise InvalidValueError(
                f"the training batch must be at least 1 item, not {self.batch}."
            )

    @property
    def most_epochs(self) -> int:
        """Return the epochs that a bar counts: the trial's and the training's."""
        return self.epochs + (self.trial if len(self.learning_rates) > 1 else 0)


def schedule(step: int, steps: int) -> float:
    """Return the share of the learning rate at a step."""
    warm = max(1, steps // 10)
    return (
        (step + 1) / warm
        if step < warm
        else 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
    )


_BETAS = (0.9, 0.999)
_EPS = 1e-8


def adamw_step(
    phase: Phase, piece: slice, grads: Sequence[Tensor], rates: Tensor, step: int, decay: float
) -> None:
    """Change the layers of a piece in place. `rates` (G, R) are the learning rates now; `step`
    counts from 1; no bias decays.

    Everything is elementwise: what one probe does never reaches another.
    """
    fix_first = 1 - _BETAS[0] ** step
    fix_second = 1 - _BETAS[1] ** step
    with torch.no_grad():
        for name, grad in zip(phase.parameters, grads, strict=True):
            groups = (phase.parameters, phase.first, phase.second)
            value, m, v = (group[name][piece] for group in groups)
            rate = rates.view(*rates.shape, *[1] * (value.dim() - 2))
            m.lerp_(grad, 1 - _BETAS[0])
            v.mul_(_BETAS[1]).addcmul_(grad, grad, value=1 - _BETAS[1])
            if name != "bias":
                value.mul_(1 - rate * decay)
            size = (v / fix_second).sqrt_().add_(_EPS)
            value.sub_(torch.div(m, size, out=size).mul_(rate / fix_first))


STOP_BELOW = 0.15
"""No layer stops while its learning rate is above this share of its peak. The last steps, with
small rates, bring points of accuracy: a layer that left before them would look worse than its
neighbors for no other reason."""


@dataclass
class Phase:
    """A training under way. Parameters and moments are of the `live` layers only; the rest is of
    all layers (L, R)."""

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

    @property
    def last(self) -> np.ndarray:
        """Return the last epoch that each layer was trained for."""
        return np.where(self.stopped > 0, self.stopped, self.epoch)


@dataclass(frozen=True)
class Task:
    """A kind of probe, the states at some places, class numbers by item, and the parts."""

    head: Head
    states: States
    places: list[int]
    labels: Tensor
    train: np.ndarray
    validation: np.ndarray
    norms: Statistics
    recipe: ProbeRecipe

    @property
    def batch(self) -> int:
        """Return the items per step."""
        return self.recipe.batch_for(len(self.train))


def train(
    task: Task,
    phase: Phase | None = None,
    after_epoch: Callable[[Phase], None] = lambda phase: None,
) -> Phase:
    """Try the learning rates, then train every layer with its own until all have stopped. `phase`
    is where to go on.

    `best` of what is returned has one probe per layer (L, 1, …).
    """
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
        raise LayerscopeError(
            "the loss of a probe is not finite. Use smaller learning_rates=, or final_norm='applied'."
        )
    return phase


def _begin(task: Task, rates: np.ndarray, trial: bool) -> Phase:
    """Return the start of a training: every probe at the same values."""
    generator = torch.Generator().manual_seed(task.recipe.seed)
    start = {
        name: value.to(task.states.device) for name, value in task.head.start(generator).items()
    }
    copies = [
        {name: value.expand(*rates.shape, *value.shape).clone() for name, value in start.items()}
        for _ in range(4)
    ]
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


def _go_on(
    task: Task, phase: Phase, epochs: int, patience: int, after_epoch: Callable[[Phase], None]
) -> None:
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
    """Every item once, in batches of neighbors: the items are in a random order already, and where
    a batch begins is drawn again.

    Neighbors lie together in memory, so that a batch need not be gathered first.
    """
    turned = np.roll(items, -int(rng.integers(len(items))))
    for start in rng.permutation(math.ceil(len(items) / batch)):
        yield turned[start * batch : (start + 1) * batch]


def _batches(
    task: Task, layers: np.ndarray, items: np.ndarray
) -> Iterator[tuple[slice, StateBatch]]:
    """Yield pieces of `layers` (a slice) with the states of some items."""
    for piece, x, mask in task.states.read([task.places[i] for i in layers], items):
        at = layers[piece]
        yield piece, StateBatch(x, mask, task.norms.mean[at], task.norms.scale[at])


def _scored(
    task: Task, parameters: Parameters, layers: np.ndarray, items: np.ndarray
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield pieces of `layers` and `items` (slices) with their class scores (G, B, R, C)."""
    for start in range(0, len(items), 2 * task.batch):
        rows = slice(start, min(start + 2 * task.batch, len(items)))
        for piece, batch in _batches(task, layers, items[rows]):
            current = {name: value[piece] for name, value in parameters.items()}
            yield piece, rows, task.head.scores(current, batch)


def _classes(task: Task, items: np.ndarray) -> Tensor:
    return task.labels[torch.from_numpy(items).to(task.labels.device)]


def _step(task: Task, phase: Phase, items: np.ndarray, step: int, steps: int) -> None:
    labels = _classes(task, items)
    share = schedule(step, steps)
    for piece, batch in _batches(task, phase.live, items):
        current = {
            name: value[piece].detach().requires_grad_() for name, value in phase.parameters.items()
        }
        with torch.enable_grad():
            scores = task.head.scores(current, batch)
            loss = (
                _cross_entropy(scores, labels).mean(1).sum()
            )  # a sum: no layer's gradient depends on another's
            grads = torch.autograd.grad(loss, list(current.values()))
        rates = torch.from_numpy(phase.rates[phase.live[piece]] * share).to(batch.states)
        adamw_step(phase, piece, grads, rates, step + 1, task.recipe.weight_decay)


def _cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Return losses (G, B, R) of scores (G, B, R, C) and classes (B,)."""
    picked = scores.gather(
        -1, labels.view(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
    ).squeeze(-1)
    return scores.logsumexp(-1) - picked


def judge(task: Task, phase: Phase) -> tuple[np.ndarray, np.ndarray]:
    """Return accuracy and loss (live layers, R) on the validation part."""
    shape = (len(phase.live), phase.rates.shape[1])
    count = len(task.validation)
    hits = torch.zeros(shape, dtype=torch.int64, device=task.states.device)
    losses = torch.zeros(shape, device=task.states.device)
    with torch.inference_mode():
        for piece, rows, scores in _scored(task, phase.parameters, phase.live, task.validation):
            labels = _classes(task, task.validation[rows])
            hits[piece] += (scores.argmax(-1) == labels[None, :, None]).sum(1)
            losses[piece] += _cross_entropy(scores, labels).sum(1)
    return hits.cpu().numpy() / count, losses.double().cpu().numpy() / count


def _remember(phase: Phase, accuracy: np.ndarray, loss: np.ndarray, patience: int) -> None:
    """Keep what is best on the validation part (higher accuracy, then lower loss); stop layers that
    no longer improve."""
    live = phase.live
    better = (accuracy > phase.accuracy[live]) | (
        (accuracy == phase.accuracy[live]) & (loss < phase.loss[live])
    )
    better &= np.isfinite(loss)
    new = torch.from_numpy(better)
    for name, value in phase.parameters.items():
        chosen, layers = new.to(value.device), torch.from_numpy(live).to(value.device)
        best = phase.best[name][layers]
        best[chosen] = value[chosen]
        phase.best[name][layers] = best
    for stored, seen in (
        (phase.accuracy, accuracy),
        (phase.loss, loss),
        (phase.at, phase.epoch),
    ):
        stored[live] = np.where(better, seen, stored[live])
    waited = (phase.epoch - phase.at[live] >= patience).all(axis=1)
    if waited.any():
        phase.stopped[live[waited]] = phase.epoch
        phase.live = live[~waited]
        for group in (phase.parameters, phase.first, phase.second):
            for name, value in group.items():
                group[name] = value[torch.from_numpy(~waited).to(value.device)].contiguous()


def _chosen_rates(phase: Phase) -> np.ndarray:
    """(L, 1): the learning rate with the best validation accuracy; ties by loss, then the smaller
    one."""
    order = [
        np.lexsort((phase.rates[i], phase.loss[i], -phase.accuracy[i]))[0]
        for i in range(len(phase.rates))
    ]
    return np.take_along_axis(phase.rates, np.array(order)[:, None], axis=1)


def rank_classes(task: Task, parameters: Parameters, items: np.ndarray) -> np.ndarray:
    """Return classes from the likeliest to the least (L, items, up to 5) under one probe per layer."""
    out = np.zeros((len(task.places), len(items), min(5, task.head.classes)), dtype=np.int32)
    with torch.inference_mode():
        for piece, rows, scores in _scored(task, parameters, np.arange(len(out)), items):
            top = scores.squeeze(2).argsort(dim=-1, descending=True, stable=True)
            out[piece, rows] = top[..., : out.shape[2]].cpu().numpy()
    return out


_TENSORS = ("parameters", "first", "second", "best")


def write_phase(file: Path, phase: Phase) -> None:
    """Write a training after an epoch; the file is whole or not there."""
    content = {name: value for name, value in vars(phase).items() if name not in _TENSORS}
    content |= {
        f"{group}/{name}": value.cpu()
        for group in _TENSORS
        for name, value in getattr(phase, group).items()
    }
    checked.write_arrays(file, {name: np.asarray(value) for name, value in content.items()})


def read_phase(file: Path, device: torch.device) -> Phase | None:
    """Return the training that an earlier attempt left; None where there is none, or a damaged one, which
    is set aside."""
    arrays = checked.read_or_discard(file, checked.read_arrays)
    if arrays is None:
        return None
    parts: dict[str, Any] = {group: {} for group in _TENSORS}
    for key, value in arrays.items():
        group, slash, name = key.partition("/")
        if slash:
            parts[group][name] = torch.from_numpy(value).to(device)
        else:
            parts[key] = value if value.ndim else value.item()
    return Phase(**parts)


KNN = "knn"
_WRITE_EVERY = 20.0  # seconds of training that a stop may cost


def probes() -> dict[str, str]:
    """Return every kind of probe with its description."""
    trained = {name: head.summary for name, head in HEADS.items()}
    return {
        **trained,
        KNN: f"the {NEIGHBORS} training items with the highest cosine of pooled vectors vote; nothing is trained",
    }


def pooling_of(probe: str) -> str:
    """Return the pooling of the states that a probe reads."""
    return "summary" if probe == KNN else HEADS[probe].pooling


def head_count(model: LoadedModel) -> int:
    """Return the heads of the attention probe: as many as the model's own attention has, else the most up to
    12 that divide its width."""
    config = getattr(model.module, "config", None)
    for name in ("num_attention_heads", "n_head", "heads"):
        named = getattr(config, name, None)
        if isinstance(named, int) and named > 0 and model.width % named == 0:
            return named
    return max(n for n in range(1, 13) if model.width % n == 0)


def vote(
    states: States,
    labels: torch.Tensor,
    split: Split,
    layers: Sequence[int],
    classes: int,
    batch: int,
) -> Predictions:
    """Let nearest neighbors vote at every layer: training and validation items vote on the test items,
    training items on the others."""
    clock = time.perf_counter()
    parts = {name: getattr(split, name) for name in ("train", "validation", "test")}
    vectors = {name: _vectors(states, list(layers), items, batch) for name, items in parts.items()}
    known = {
        name: labels[torch.from_numpy(items).to(labels.device)] for name, items in parts.items()
    }
    bank = torch.cat([known["train"], known["validation"]])
    ranks = []
    accuracies = []
    with torch.inference_mode():
        for train, validation, test in zip(*vectors.values(), strict=True):
            ranks.append(
                neighbor_ranks(torch.cat([train, validation]), bank, test, classes)[:, :5]
                .cpu()
                .numpy()
            )
            first = neighbor_ranks(train, known["train"], validation, classes)[:, 0]
            accuracies.append(float((first == known["validation"]).float().mean()))
    no_rate = np.full(len(layers), np.nan)
    no_epoch = np.zeros(len(layers), dtype=np.int64)
    return Predictions(
        np.stack(ranks).astype(np.int32),
        np.array(accuracies),
        no_rate,
        no_epoch,
        no_epoch,
        time.perf_counter() - clock,
    )


def _vectors(states: States, layers: list[int], items: np.ndarray, batch: int) -> torch.Tensor:
    parts = []
    for start in range(0, len(items), batch):
        pieces = [
            x[:, :, 0].clone() for _, x, _ in states.read(layers, items[start : start + batch])
        ]
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
    batch = recipe.batch_for(len(split.train))
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

    trained = train(task, earlier, after)
    ranks = rank_classes(task, trained.best, split.test)
    return Predictions(
        ranks,
        trained.accuracy[:, 0],
        trained.rates[:, 0],
        trained.at[:, 0],
        trained.last,
        trained.seconds,
    )
