"""Probes find classes where they are and nowhere else, alone as together, and choose without the
test part."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from layerscope.errors import LayerscopeError
from layerscope.probing.training import (
    STOP_BELOW,
    Phase,
    ProbeRecipe,
    adamw_step,
    read_phase,
    schedule,
    train,
    write_phase,
)
from tests.probing.support import CLASSES, accuracies, made_states, task_on, trained


@pytest.mark.parametrize("probe", ["attention", "linear", "mean"])
def test_classes_are_found_in_the_layer_that_holds_them(probe: str) -> None:
    states, labels = made_states(600, 4, {2: "mean"})
    task, test = task_on(states, labels, probe)
    found = accuracies(task, trained(task), test)
    assert found[2] > 0.95
    chance = 3 * np.sqrt(0.25 * 0.75 / len(test))
    assert (np.abs(np.delete(found, 2) - 1 / CLASSES) < chance).all(), found


def test_attention_finds_a_token_that_a_mean_drowns() -> None:
    states, labels = made_states(800, 2, {1: "token"})
    accuracy = {}
    for probe in ("attention", "mean"):
        task, test = task_on(states, labels, probe)
        accuracy[probe] = accuracies(task, trained(task), test)[1]
    assert accuracy["attention"] > 0.8
    assert accuracy["mean"] < 0.6


@pytest.mark.parametrize("probe", ["attention", "mean"])
def test_together_equals_alone(probe: str) -> None:
    """Every layer becomes the same probe, is given the same learning rate and stops at the same
    epoch."""
    states, labels = made_states(300, 4, {1: "mean", 3: "token"}, seed=1)
    recipe = ProbeRecipe(
        learning_rates=(1e-3, 1e-2), trial=2, epochs=6, patience=2, batch=32, seed=3
    )
    task, _ = task_on(states, labels, probe, None, recipe)
    together = trained(task)
    for layer in range(4):
        single, _ = task_on(states, labels, probe, [layer], recipe)
        alone = trained(single)
        for name, value in together.best.items():
            torch.testing.assert_close(value[layer], alone.best[name][0], rtol=1e-4, atol=1e-5)
        for fact in ("rates", "at", "last", "accuracy"):
            assert (getattr(together, fact)[layer] == getattr(alone, fact)[0]).all(), (layer, fact)


def test_linear_probe_equals_logistic_regression() -> None:
    """Trained to the end without decay, the linear probe is the maximum-likelihood one: the same
    classes, near the same loss."""
    from sklearn.linear_model import LogisticRegression

    states, labels = made_states(400, 1, {}, seed=5)
    pattern = np.random.default_rng(1).standard_normal((CLASSES, states.shape[-1]))
    states = states + 0.25 * torch.from_numpy(pattern[labels]).float()[None, :, None]
    recipe = ProbeRecipe(
        learning_rates=(0.1,), epochs=200, patience=200, weight_decay=0.0, batch=240
    )
    task, _ = task_on(states, labels, "mean", None, recipe)
    last: list[Phase] = []
    train(task, after_epoch=lambda phase: last.append(phase))
    mean, scale = task.norms.mean[0].numpy(), task.norms.scale[0].numpy()
    vectors = (states[0].mean(1).numpy() - mean) / scale
    model = LogisticRegression(C=1e8, max_iter=2000).fit(vectors[task.train], labels[task.train])
    ours = (
        vectors @ last[-1].parameters["linear"][0, 0].numpy()
        + last[-1].parameters["bias"][0, 0].numpy()
    )

    def loss(scores: np.ndarray) -> float:
        some = scores[task.train] - scores[task.train].max(1, keepdims=True)
        return float(
            np.mean(np.log(np.exp(some).sum(1)) - some[np.arange(len(some)), labels[task.train]])
        )

    theirs = model.decision_function(vectors)
    assert loss(ours) == pytest.approx(loss(theirs), abs=5e-3)
    assert (ours.argmax(1) == theirs.argmax(1)).mean() > 0.98


def test_the_validation_part_alone_chooses() -> None:
    """Other labels in the test part change nothing that is learned; other labels in the validation
    part do."""
    states, labels = made_states(300, 2, {1: "mean"}, seed=2)
    task, test = task_on(states, labels, "mean")
    found = trained(task)
    for part, same in ((test, True), (task.validation, False)):
        other = labels.copy()
        other[part] = (other[part] + 1) % CLASSES
        changed, _ = task_on(states, other, "mean")
        seen = trained(changed)
        equal = all(torch.equal(v, seen.best[k]) for k, v in found.best.items())
        assert equal is same


def test_layers_stop_by_themselves_but_not_before_their_rate_is_small() -> None:
    states, labels = made_states(300, 3, {1: "mean"}, seed=4)
    recipe = ProbeRecipe(learning_rates=(1e-2,), epochs=40, patience=3, batch=32)
    task, _ = task_on(states, labels, "mean", None, recipe)
    found = trained(task)
    assert (found.last < 40).any()
    assert (found.last >= found.at[:, 0]).all()
    early = found.last[found.last < 40]
    assert all(schedule(int(e), 40) < STOP_BELOW for e in early), early
    assert (found.last - found.at[:, 0] >= 3)[found.last < 40].all()


def test_a_stopped_training_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    states, labels = made_states(200, 3, {1: "mean"}, seed=6)
    recipe = ProbeRecipe(learning_rates=(1e-3, 1e-2), trial=3, epochs=6, patience=2, batch=32)
    task, _ = task_on(states, labels, "attention", None, recipe)
    whole = trained(task)
    for stop in (2, 5):  # within the trial, within the training
        seen = 0

        def after(phase: Phase, stop: int = stop) -> None:
            nonlocal seen
            seen += 1
            if seen == stop:
                write_phase(tmp_path / "phase", phase)
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(task, after_epoch=after)
        resumed = train(task, read_phase(tmp_path / "phase", torch.device("cpu")))
        for name, value in whole.best.items():
            torch.testing.assert_close(value, resumed.best[name], rtol=0, atol=0)
        assert (whole.last == resumed.last).all()
        assert (whole.rates == resumed.rates).all()


def test_adamw_equals_torchs() -> None:
    torch.manual_seed(0)
    value = torch.randn(2, 3, 4, 5)
    rates, decay = torch.tensor([[1e-2, 3e-2, 1e-1], [1e-3, 1e-2, 2e-2]]), 0.1
    ours = {"linear": value.clone()}
    first, second = ({"linear": torch.zeros_like(value)} for _ in range(2))
    phase: Any = SimpleNamespace(parameters=ours, first=first, second=second)
    theirs = {(g, r): torch.nn.Parameter(value[g, r].clone()) for g in range(2) for r in range(3)}
    optimizers = {
        k: torch.optim.AdamW([p], lr=float(rates[k]), weight_decay=decay) for k, p in theirs.items()
    }
    for step in range(1, 6):
        grad = torch.randn_like(value)
        adamw_step(phase, slice(0, 2), [grad], rates, step, decay)
        for (g, r), parameter in theirs.items():
            parameter.grad = grad[g, r].clone()
            optimizers[g, r].step()
    for (g, r), parameter in theirs.items():
        torch.testing.assert_close(ours["linear"][g, r], parameter.data, rtol=1e-5, atol=1e-6)


def test_schedule_rises_and_falls() -> None:
    shares = [schedule(step, 100) for step in range(100)]
    assert shares[0] == pytest.approx(0.1)
    assert max(shares) == 1.0
    assert shares[-1] < 0.001
    assert all(a >= b for a, b in pairwise(shares[10:]))


@pytest.mark.parametrize(
    "wrong", [{"learning_rates": ()}, {"learning_rates": (0.0,)}, {"epochs": 0}, {"batch": -1}]
)
def test_a_recipe_that_cannot_work_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(LayerscopeError):
        ProbeRecipe(**wrong).check()  # type: ignore[arg-type]
