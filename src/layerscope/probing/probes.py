"""Probes, fitted at every layer: logistic regression and nearest neighbors on one vector an item,
and attention probes, whose query attends over the tokens of an item.

Layers share no parameter. Attention probes see the same batches in the same order: a layer that is
trained alone with the same seed becomes the same probe. The validation part alone chooses the
settings of each layer; the test part is read at the end.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn import functional

from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.models import LoadedModel
from layerscope.probing.examples import Split
from layerscope.probing.run import Predictions

NEIGHBORS = 20
STRENGTHS = (0.001, 0.01, 0.1, 1.0)
"""The values of scikit-learn's `C` among which the validation part chooses."""
_WEIGHT_DECAY = 0.1
_EPSILON = 1e-6

# No layer stops while its learning rate is above this share of its peak. The last steps, with
# small rates, bring points of accuracy: a layer that left before them would look worse than its
# neighbors for no other reason.
STOP_BELOW = 0.15


# One vector an item


def fit_linear(vectors: np.ndarray, labels: np.ndarray, split: Split, classes: int) -> Predictions:
    """Fit a logistic regression at every layer (layers, items, width), and predict the classes of
    the test items.

    Features are standardized with the training part. Of several strengths of regularization the
    validation part chooses; of equal ones the strongest.
    """
    predicted = []
    accuracies = []
    strengths = []
    for layer in vectors:
        wide = layer.astype(np.float64)
        rows = StandardScaler().fit(wide[split.train]).transform(wide)
        fits = []
        for strength in STRENGTHS:
            model = LogisticRegression(C=strength, max_iter=1000)
            model.fit(rows[split.train], labels[split.train])
            shares = class_shares(model, rows[split.validation], classes)
            gold = labels[split.validation]
            accuracy = float((shares.argmax(-1) == gold).mean())
            loss = log_loss(gold, shares, labels=np.arange(classes))
            fits.append((-accuracy, loss, strength, model))
        best = min(fits, key=lambda fit: fit[:3])
        accuracies.append(-best[0])
        strengths.append(best[2])
        predicted.append(class_shares(best[3], rows[split.test], classes).argmax(-1))
    settings = {"strength": np.array(strengths)}
    return Predictions(np.stack(predicted), np.array(accuracies), settings)


def fit_neighbors(
    vectors: np.ndarray, labels: np.ndarray, split: Split, classes: int
) -> Predictions:
    """Let the nearest neighbors by cosine vote at every layer.

    Training and validation items vote on the test items, and training items on validation items.
    """
    bank = np.concatenate([split.train, split.validation])
    predicted = []
    accuracies = []
    for layer in vectors:
        validated = vote(layer, labels, split.train, split.validation, classes)
        accuracies.append(float((validated == labels[split.validation]).mean()))
        predicted.append(vote(layer, labels, bank, split.test, classes))
    return Predictions(np.stack(predicted), np.array(accuracies))


def vote(
    vectors: np.ndarray, labels: np.ndarray, bank: np.ndarray, items: np.ndarray, classes: int
) -> np.ndarray:
    """Return the classes of some items (items,) by the votes of their neighbors in a bank.

    Of classes with equal votes the one with the highest sum of its voters' cosines is taken.
    """
    count = min(NEIGHBORS, len(bank))
    exact = vectors.astype(np.float64)  # some layers have cosines that differ by a millionth

    def weigh(distances: np.ndarray) -> np.ndarray:
        # A cosine is at most 1: a thousandth of their mean cannot outweigh a vote.
        return 1 + (1 - distances) / (1000 * count)

    model = KNeighborsClassifier(count, weights=weigh, algorithm="brute", metric="cosine")
    model.fit(exact[bank], labels[bank])
    return class_shares(model, exact[items], classes).argmax(-1)


def class_shares(model: Any, rows: np.ndarray, classes: int) -> np.ndarray:
    """Return the probability of each class (rows, classes); 0 for those that a fitted classifier
    does not know."""
    shares = np.zeros((len(rows), classes))
    shares[:, model.classes_] = model.predict_proba(rows)
    return shares


# Attention


@dataclass(frozen=True)
class ProbeRecipe:
    """The training of attention probes: AdamW, a linear warm-up, then half a cosine to zero.

    Every learning rate is tried with a whole schedule of `trial` epochs. Each layer then starts
    over with the one that was best on the validation part, and trains for up to `epochs`. Once its
    rate has come down, it stops when nothing was gained there for `patience` epochs.
    """

    learning_rates: tuple[float, ...] = (2e-3, 1e-2, 5e-2)
    trial: int = 3
    epochs: int = 15
    patience: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        rates = self.learning_rates
        if not rates or any(not (math.isfinite(rate) and rate > 0) for rate in rates):
            raise InvalidValueError(f"learning rates must be numbers above 0, not {list(rates)}.")
        if min(self.trial, self.epochs, self.patience) < 1:
            raise InvalidValueError("trial, epochs and patience must be at least 1.")

    @property
    def most_epochs(self) -> int:
        """Return the epochs of the trial and of the training."""
        return self.epochs + (self.trial if len(self.learning_rates) > 1 else 0)


def batch_size(items: int) -> int:
    """Return the items per step: 256, or fewer so that an epoch has about 16 steps.

    >>> batch_size(60000), batch_size(1000), batch_size(50)
    (256, 62, 32)
    """
    return min(256, max(32, items // 16))


def schedule(step: int, steps: int) -> float:
    """Return the share of the learning rate at a step: a warm-up over a tenth, then a cosine."""
    warm = max(1, steps // 10)
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def head_count(model: LoadedModel) -> int:
    """Return the number of attention heads of the model, where it divides the width; else the
    largest divisor of the width up to 12."""
    config = getattr(model.module, "config", None)
    for name in ("num_attention_heads", "n_head", "heads"):
        count = getattr(config, name, None)
        if isinstance(count, int) and count > 0 and model.width % count == 0:
            return count
    return max(count for count in range(1, 13) if model.width % count == 0)


class AttentionProbe(nn.Module):
    """Multi-head attention with one learned query per head, then a linear layer (El-Nouby 2024).

    Of a standardized token x, head h has the weight softmax(qₕ · Kₕx / √d) and the value Vₕx. The
    query is the same for every item. So qₕ · Kₕx = x · (Kₕᵀqₕ): the vector Kₕᵀqₕ is learned
    itself, and Vₕ is applied after the sum over tokens. A token costs 2 · width · heads products
    instead of 2 · width², and the mean of the standardization falls out of the softmax.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, scale: Tensor, heads: int, classes: int, seed: int) -> None:
        super().__init__()
        width = len(mean)
        bound = 1 / math.sqrt(width)
        generator = torch.Generator().manual_seed(seed)

        def uniform(*shape: int) -> nn.Parameter:
            return nn.Parameter((torch.rand(*shape, generator=generator) * 2 - 1) * bound)

        self.query = nn.Parameter(torch.zeros(heads, width))  # begins as the mean over tokens
        self.value = uniform(heads, width, width // heads)
        self.linear = uniform(width, classes)
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        self.to(mean.device)

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """Return class scores (items, classes) of states (items, tokens, width)."""
        heads, width = self.query.shape
        items, tokens, _ = states.shape
        directions = self.query / (self.scale * math.sqrt(width // heads))
        # Tokens last: a processor's vectors run along them.
        logits = (directions @ states.reshape(-1, width).T).view(heads, items, tokens)
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf)
        weights = logits.softmax(-1).transpose(0, 1)
        pooled = (weights @ states - self.mean) / self.scale
        values = pooled.transpose(0, 1) @ self.value
        return values.transpose(0, 1).flatten(1) @ self.linear


class States(Protocol):
    """States of all tokens at some layers, by the places of items."""

    device: torch.device

    def read(self, places: np.ndarray) -> tuple[Tensor, Tensor | None]:
        """Return states (layers, items, tokens, width) and the mask of tokens (items, tokens)."""


@dataclass(frozen=True)
class ProbeTask:
    """States, the classes of all items, and the items of each part."""

    states: States
    labels: Tensor
    split: Split
    recipe: ProbeRecipe

    @property
    def batch(self) -> int:
        """Return the items per training step."""
        return batch_size(len(self.split.train))

    def batches(self, places: np.ndarray) -> Iterator[tuple[np.ndarray, Tensor, Tensor | None]]:
        """Yield places with their states and mask. Without gradients, more items fit at once."""
        size = 2 * self.batch
        for start in range(0, len(places), size):
            batch = places[start : start + size]
            yield batch, *self.states.read(batch)

    def classes_at(self, places: np.ndarray) -> Tensor:
        """Return the classes of some items."""
        return self.labels[torch.from_numpy(places).to(self.labels.device)]


class LayerProbe:
    """The probe of one layer at one learning rate, in training, and its best epoch so far."""

    def __init__(self, layer: int, rate: float, module: AttentionProbe) -> None:
        self.layer = layer
        self.rate = rate
        self.module = module
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=_WEIGHT_DECAY)
        self.epochs = 0
        self.best_epoch = 0
        self.best_accuracy = -1.0
        self.best_loss = math.inf
        self._best = module.state_dict()

    def step(self, states: Tensor, mask: Tensor | None, labels: Tensor, share: float) -> None:
        """Train on one batch, with a share of the learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * share
        self.optimizer.zero_grad()
        scores = self.module(states[self.layer], mask)
        functional.cross_entropy(scores, labels).backward()
        self.optimizer.step()

    def end_epoch(self, accuracy: float, loss: float) -> None:
        """Record an epoch, and keep the weights if it is the best on the validation part."""
        self.epochs += 1
        is_better = (accuracy, -loss) > (self.best_accuracy, -self.best_loss)
        if is_better and math.isfinite(loss):
            self.best_epoch = self.epochs
            self.best_accuracy = accuracy
            self.best_loss = loss
            self._best = copy.deepcopy(self.module.state_dict())

    def restore_best(self) -> None:
        """Take the weights of the best epoch."""
        self.module.load_state_dict(self._best)


def fit_attention(
    states: States,
    labels: np.ndarray,
    split: Split,
    classes: int,
    heads: int,
    recipe: ProbeRecipe,
    advance: Callable[[int], None] = lambda epochs: None,
) -> Predictions:
    """Train a probe at every layer, and predict the classes of the test items."""
    task = ProbeTask(states, torch.from_numpy(labels).to(states.device), split, recipe)
    means, scales = standardization(task)

    def start(layer: int, rate: float) -> LayerProbe:
        module = AttentionProbe(means[layer], scales[layer], heads, classes, recipe.seed)
        return LayerProbe(layer, rate, module)

    layers = range(len(means))
    rates = [recipe.learning_rates[0] for _ in layers]
    if len(recipe.learning_rates) > 1:
        trials = [[start(layer, rate) for rate in recipe.learning_rates] for layer in layers]
        candidates = [probe for of_layer in trials for probe in of_layer]
        train(task, candidates, recipe.trial, advance, is_trial=True)
        rates = [min(of_layer, key=_quality).rate for of_layer in trials]
    probes = [start(layer, rate) for layer, rate in zip(layers, rates, strict=True)]
    train(task, probes, recipe.epochs, advance)
    if any(probe.best_epoch == 0 for probe in probes):
        raise LayerscopeError(
            "the loss of a probe is not finite. Use smaller learning_rates=, or "
            "final_norm='applied'."
        )
    for probe in probes:
        probe.restore_best()
    settings = {
        "learning_rate": np.array(rates),
        "epoch": np.array([probe.best_epoch for probe in probes]),
        "epochs": np.array([probe.epochs for probe in probes]),
    }
    accuracies = np.array([probe.best_accuracy for probe in probes])
    return Predictions(predict(task, probes, split.test), accuracies, settings)


def _quality(probe: LayerProbe) -> tuple[float, float, float]:
    """Return a sorting key: the best probe first; of equal ones that with the smaller rate."""
    return -probe.best_accuracy, probe.best_loss, probe.rate


def standardization(task: ProbeTask) -> tuple[Tensor, Tensor]:
    """Return the mean and scale (layers, width) of the training part's states over all tokens."""
    exact = torch.float32 if task.states.device.type == "mps" else torch.float64
    count = 0
    total: Tensor | float = 0.0
    square: Tensor | float = 0.0
    for places, states, mask in task.batches(task.split.train):
        # States that are masked out are 0 and add nothing.
        wide = [layer.to(exact) for layer in states]
        total = total + torch.stack([layer.sum((0, 1)) for layer in wide])
        square = square + torch.stack([layer.square().sum((0, 1)) for layer in wide])
        count += len(places) * states.shape[2] if mask is None else int(mask.sum())
    assert isinstance(total, Tensor)
    mean = total / count
    variance = (square / count - mean.square()).clamp_min(0)
    return mean.float(), (variance + _EPSILON).sqrt().float()


def train(
    task: ProbeTask,
    probes: Sequence[LayerProbe],
    epochs: int,
    advance: Callable[[int], None] = lambda epochs: None,
    *,
    is_trial: bool = False,
) -> None:
    """Train probes on the same batches until all have stopped."""
    live = list(probes)
    steps = math.ceil(len(task.split.train) / task.batch)
    for epoch in range(epochs):
        rng = np.random.default_rng([task.recipe.seed, 1, int(is_trial), epoch])
        for step, places in enumerate(epoch_batches(task.split.train, task.batch, rng)):
            states, mask = task.states.read(places)
            labels = task.classes_at(places)
            share = schedule(epoch * steps + step, epochs * steps)
            for probe in live:
                probe.step(states, mask, labels, share)
        _validate(task, live)
        advance(1)
        if schedule((epoch + 1) * steps, epochs * steps) < STOP_BELOW:
            live = [
                probe for probe in live if probe.epochs - probe.best_epoch < task.recipe.patience
            ]


def epoch_batches(items: np.ndarray, batch: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield every item once, in batches of neighbors.

    The items are in a random order already. Neighbors lie together in memory, so that a batch need
    not be gathered first.
    """
    turned = np.roll(items, -int(rng.integers(len(items))))
    for start in rng.permutation(math.ceil(len(items) / batch)):
        yield turned[start * batch : (start + 1) * batch]


@torch.inference_mode()
def _validate(task: ProbeTask, probes: Sequence[LayerProbe]) -> None:
    validation = task.split.validation
    hits = torch.zeros(len(probes))
    losses = torch.zeros(len(probes), dtype=torch.float64)
    for places, states, mask in task.batches(validation):
        labels = task.classes_at(places)
        for i, probe in enumerate(probes):
            scores = probe.module(states[probe.layer], mask)
            hits[i] += (scores.argmax(-1) == labels).sum().cpu()
            losses[i] += functional.cross_entropy(scores, labels, reduction="sum").cpu()
    for probe, hit, loss in zip(probes, hits.tolist(), losses.tolist(), strict=True):
        probe.end_epoch(hit / len(validation), loss / len(validation))


@torch.inference_mode()
def predict(task: ProbeTask, probes: Sequence[LayerProbe], places: np.ndarray) -> np.ndarray:
    """Return the predicted classes (probes, items)."""
    predicted = []
    for _, states, mask in task.batches(places):
        scores = [probe.module(states[probe.layer], mask) for probe in probes]
        predicted.append(torch.stack(scores).argmax(-1).cpu().numpy())
    return np.concatenate(predicted, axis=1)
