"""Attention probes: the formula, its training, and what it finds in states made by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from layerscope.errors import InvalidValueError
from layerscope.probing.examples import Split
from layerscope.probing.probes import (
    STOP_BELOW,
    AttentionProbe,
    ProbeRecipe,
    ProbeTask,
    fit_attention,
    schedule,
    standardization,
)
from layerscope.probing.run import Predictions

CLASSES, WIDTH, TOKENS, HEADS = 4, 16, 6, 4
QUICK = ProbeRecipe(learning_rates=(3e-3, 2e-2), trial=2, epochs=12, patience=4)


@dataclass(frozen=True)
class MadeStates:
    """States in memory (layers, items, tokens, width)."""

    states: Tensor
    mask: Tensor | None = None

    @property
    def device(self) -> torch.device:
        return self.states.device

    def read(self, places: np.ndarray) -> tuple[Tensor, Tensor | None]:
        return self.states[:, places], None if self.mask is None else self.mask[places]


def made_states(
    items: int, layers: int, holds: dict[int, str], seed: int = 0
) -> tuple[Tensor, np.ndarray]:
    """Return noise and classes; layer k holds the class in the `mean`, in one `token`, or not."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, items)
    patterns = rng.standard_normal((CLASSES, WIDTH)) * 2
    states = rng.standard_normal((layers, items, TOKENS, WIDTH))
    for layer, where in holds.items():
        if where == "mean":
            states[layer] += patterns[labels][:, None]
        else:  # one marked token, at a random place, has the class; the others have any
            place = rng.integers(0, TOKENS, items)
            classes = rng.integers(0, CLASSES, (items, TOKENS))
            classes[np.arange(items), place] = labels
            states[layer] += patterns[classes]
            states[layer, np.arange(items), place, 0] += 12
    return torch.from_numpy(states).float(), labels


def split_of(items: int) -> Split:
    """Return 60 % to train, 15 % to choose, the rest to test."""
    first, second = int(0.6 * items), int(0.75 * items)
    return Split(*np.split(np.arange(items), [first, second]))


def fit(states: Tensor, labels: np.ndarray, recipe: ProbeRecipe = QUICK) -> Predictions:
    made = MadeStates(states)
    return fit_attention(made, labels, split_of(len(labels)), CLASSES, HEADS, recipe)


def accuracies(predictions: Predictions, labels: np.ndarray) -> np.ndarray:
    return (predictions.classes == labels[split_of(len(labels)).test]).mean(1)


@pytest.mark.parametrize("where", ["mean", "token"])
def test_classes_are_found_in_the_layer_that_holds_them(where: str) -> None:
    states, labels = made_states(800, 3, {2: where})
    found = accuracies(fit(states, labels), labels)
    assert found[2] > {"mean": 0.95, "token": 0.8}[where]
    chance = 3 * np.sqrt(0.25 * 0.75 / len(split_of(800).test))
    assert (np.abs(found[:2] - 1 / CLASSES) < chance).all(), found


def test_a_layer_alone_gets_the_same_probe() -> None:
    states, labels = made_states(300, 3, {1: "mean", 2: "token"}, seed=1)
    recipe = ProbeRecipe(learning_rates=(1e-3, 1e-2), trial=2, epochs=6, patience=2, seed=3)
    together = fit(states, labels, recipe)
    for layer in range(3):
        alone = fit(states[layer : layer + 1], labels, recipe)
        assert np.array_equal(together.classes[layer], alone.classes[0])
        assert together.validation[layer] == alone.validation[0]
        for name, values in together.settings.items():
            assert values[layer] == alone.settings[name][0], name


def test_the_validation_part_alone_chooses() -> None:
    """Other labels in the test part change no prediction; others in the validation part do."""
    states, labels = made_states(300, 2, {1: "mean"}, seed=2)
    split = split_of(300)
    whole = fit(states, labels)
    for part, is_same in ((split.test, True), (split.validation, False)):
        other = labels.copy()
        other[part] = (other[part] + 1) % CLASSES
        changed = fit(states, other)
        assert np.array_equal(changed.validation, whole.validation) is is_same
        assert np.array_equal(changed.classes, whole.classes) is is_same


def test_layers_stop_by_themselves_but_not_before_their_rate_is_small() -> None:
    states, labels = made_states(300, 3, {1: "mean"}, seed=4)
    fitted = fit(states, labels, ProbeRecipe(learning_rates=(1e-2,), epochs=40, patience=3))
    last = fitted.settings["epochs"]
    early = last < 40
    assert early.any()
    assert all(schedule(int(epoch), 40) < STOP_BELOW for epoch in last[early])
    assert (last - fitted.settings["epoch"] >= 3)[early].all()


def attention_by_hand(
    item: np.ndarray, mean: np.ndarray, scale: np.ndarray, weights: dict[str, np.ndarray]
) -> np.ndarray:
    """Return the scores of one item: keys, queries and values written out, token by token."""
    rng = np.random.default_rng(0)
    size = WIDTH // HEADS
    tokens = (item - mean) / scale
    values = []
    for h in range(HEADS):
        # any query and key projection whose product is the learned vector
        query = rng.standard_normal(size)
        key = np.outer(query, weights["query"][h]) / (query @ query)
        logits = np.array([query @ (key @ token) for token in tokens]) / np.sqrt(size)
        shares = np.exp(logits - logits.max())
        values.append((shares / shares.sum()) @ (tokens @ weights["value"][h]))
    return np.concatenate(values) @ weights["linear"]


@pytest.mark.parametrize("lengths", [[6, 6, 6], [6, 1, 3]])
def test_a_probe_is_multi_head_attention(lengths: list[int]) -> None:
    torch.manual_seed(0)
    states = torch.randn(3, TOKENS, WIDTH, dtype=torch.float64) * 3 + 5
    mean, scale = torch.randn(WIDTH).double(), (torch.rand(WIDTH) + 0.5).double()
    probe = AttentionProbe(mean, scale, HEADS, CLASSES, seed=0).double()
    mask = torch.arange(TOKENS) < torch.tensor(lengths)[:, None]
    with torch.no_grad():
        begins = probe(states, None)
        means = (states.mean(1) - mean) / scale
        values = torch.cat([means @ value for value in probe.value], dim=1)
        torch.testing.assert_close(begins, values @ probe.linear)  # the mean over tokens
        for parameter in probe.parameters():
            parameter.copy_(torch.randn_like(parameter))
        scores = probe(states, None if mask.all() else mask).numpy()
    weights = {name: value.detach().numpy() for name, value in probe.named_parameters()}
    for i, length in enumerate(lengths):
        item = states[i, :length].numpy()
        expected = attention_by_hand(item, mean.numpy(), scale.numpy(), weights)
        np.testing.assert_allclose(scores[i], expected, rtol=1e-9, atol=1e-9)


def test_standardization_is_over_all_tokens_of_the_training_part() -> None:
    states, labels = made_states(100, 2, {1: "mean"})
    mask = torch.arange(TOKENS) < torch.randint(1, TOKENS + 1, (100, 1))
    states = states * mask[..., None]
    split = split_of(100)
    task = ProbeTask(MadeStates(states, mask), torch.from_numpy(labels), split, QUICK)
    means, scales = standardization(task)
    for layer in range(2):
        rows = states[layer][split.train][mask[split.train]].double().numpy()
        np.testing.assert_allclose(means[layer], rows.mean(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(scales[layer], np.sqrt(rows.var(0) + 1e-6), rtol=1e-4)


def test_schedule_rises_and_falls() -> None:
    shares = [schedule(step, 100) for step in range(100)]
    assert shares[0] == pytest.approx(0.1)
    assert max(shares) == 1.0
    assert shares[-1] < 0.001
    assert all(a >= b for a, b in pairwise(shares[10:]))


@pytest.mark.parametrize(
    "wrong", [{"learning_rates": ()}, {"learning_rates": (0.0,)}, {"epochs": 0}, {"trial": -1}]
)
def test_a_recipe_that_cannot_work_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidValueError):
        replace(QUICK, **wrong)  # type: ignore[arg-type]
