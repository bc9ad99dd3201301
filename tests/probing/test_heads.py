"""Heads against what they are said to compute; nearest neighbors against numpy."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from layerscope.probing import heads
from layerscope.probing.heads import HEADS, StateBatch, neighbor_ranks

G, R, B, N, D, H, C = 3, 2, 5, 7, 12, 3, 4


def attention_by_hand(
    x: np.ndarray, mean: np.ndarray, scale: np.ndarray, p: dict[str, np.ndarray], alive: np.ndarray
) -> np.ndarray:
    """One probe on one item in float64: keys, queries and values written out, token by token."""
    rng = np.random.default_rng(0)
    size = D // H
    tokens = ((x - mean) / scale)[alive]
    heads_out = []
    for h in range(H):
        # any key projection and query whose product is the learned vector
        query = rng.standard_normal(size)
        key = np.outer(query, p["query"][h]) / (query @ query)
        logits = np.array([query @ (key @ token) for token in tokens]) / np.sqrt(size)
        weights = np.exp(logits - logits.max())
        weights /= weights.sum()
        values = tokens @ p["value"][h]
        heads_out.append(weights @ values)
    return np.concatenate(heads_out) @ p["linear"]


@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_multi_head_attention(masked: bool) -> None:
    torch.manual_seed(0)
    head = HEADS["attention"](D, H, C)
    start = head.start(torch.Generator().manual_seed(1))
    parameters = {k: torch.randn(G, R, *v.shape, dtype=torch.float64) for k, v in start.items()}
    x = torch.randn(G, B, N, D, dtype=torch.float64) * 3 + 5
    mean, scale = (
        torch.randn(G, D, dtype=torch.float64),
        torch.rand(G, D, dtype=torch.float64) + 0.5,
    )
    lengths = torch.tensor([7, 1, 3, 5, 2])
    mask = torch.arange(N) < lengths[:, None] if masked else None
    found = head.scores(parameters, StateBatch(x, mask, mean, scale))
    assert found.shape == (G, B, R, C)
    for g, r, b in np.ndindex(G, R, B):
        alive = np.ones(N, dtype=bool) if mask is None else mask[b].numpy()
        own = {k: v[g, r].numpy() for k, v in parameters.items()}
        expected = attention_by_hand(x[g, b].numpy(), mean[g].numpy(), scale[g].numpy(), own, alive)
        np.testing.assert_allclose(found[g, b, r].numpy(), expected, rtol=1e-9, atol=1e-9)


def test_attention_begins_as_a_mean() -> None:
    head = HEADS["attention"](D, H, C)
    start = {
        k: v[None, None].double() for k, v in head.start(torch.Generator().manual_seed(0)).items()
    }
    x = torch.randn(1, B, N, D, dtype=torch.float64)
    zero, one = torch.zeros(1, D, dtype=torch.float64), torch.ones(1, D, dtype=torch.float64)
    value = torch.cat([start["value"][0, 0, h] for h in range(H)], dim=1)
    expected = x[0].mean(1) @ value @ start["linear"][0, 0]
    torch.testing.assert_close(
        head.scores(start, StateBatch(x, None, zero, one))[0, :, 0], expected
    )


@pytest.mark.parametrize("name", ["linear", "mean"])
def test_pooled_probes_are_a_standardized_linear_layer(name: str) -> None:
    torch.manual_seed(0)
    head = HEADS[name](D, H, C)
    assert sum(value.numel() for value in head.start(torch.Generator()).values()) == D * C + C
    parameters = {"linear": torch.randn(G, R, D, C), "bias": torch.randn(G, R, C)}
    x, mean, scale = torch.randn(G, B, 1, D), torch.randn(G, D), torch.rand(G, D) + 0.5
    found = head.scores(parameters, StateBatch(x, None, mean, scale))
    for g, r in np.ndindex(G, R):
        expected = ((x[g, :, 0] - mean[g]) / scale[g]) @ parameters["linear"][g, r] + parameters[
            "bias"
        ][g, r]
        torch.testing.assert_close(found[g, :, r], expected)


def test_each_layer_has_its_own_gradient() -> None:
    """The gradient of the summed loss at one layer is that of its own loss alone."""
    torch.manual_seed(0)
    head = HEADS["attention"](D, H, C)
    parameters = {
        k: torch.randn(G, R, *v.shape, requires_grad=True)
        for k, v in head.start(torch.Generator()).items()
    }
    x, mean, scale = torch.randn(G, B, N, D), torch.zeros(G, D), torch.ones(G, D)
    whole = torch.autograd.grad(
        head.scores(parameters, StateBatch(x, None, mean, scale)).square().sum(),
        list(parameters.values()),
    )
    for g in range(G):
        own = {k: v[g : g + 1].detach().requires_grad_() for k, v in parameters.items()}
        loss = (
            head.scores(own, StateBatch(x[g : g + 1], None, mean[g : g + 1], scale[g : g + 1]))
            .square()
            .sum()
        )
        for one, all_of in zip(torch.autograd.grad(loss, list(own.values())), whole, strict=True):
            torch.testing.assert_close(one[0], all_of[g], rtol=1e-4, atol=1e-4)


def by_hand(
    bank: np.ndarray, labels: np.ndarray, query: np.ndarray, classes: int, k: int
) -> list[int]:
    """Votes counted one by one in float64."""
    cosines = bank @ query / np.linalg.norm(bank, axis=1) / np.linalg.norm(query)
    near = np.argsort(-cosines, kind="stable")[:k]
    votes, weight = Counter(labels[near].tolist()), Counter()
    for i in near:
        weight[int(labels[i])] += cosines[i]
    return sorted(range(classes), key=lambda c: (-votes[c], -weight[c], c))


def test_against_numpy(monkeypatch: object) -> None:
    rng = np.random.default_rng(0)
    bank, labels, queries = (
        rng.standard_normal((90, 8)),
        rng.integers(0, 6, 90),
        rng.standard_normal((40, 8)),
    )
    found = neighbor_ranks(
        torch.from_numpy(bank), torch.from_numpy(labels), torch.from_numpy(queries), 6
    )
    for i, query in enumerate(queries):
        expected = by_hand(bank, labels, query, 6, 20)
        voted = [c for c in expected if c in set(labels.tolist())]
        assert found[i, :3].tolist() == voted[:3]


def test_the_size_of_the_pieces_changes_nothing(monkeypatch: object) -> None:
    rng = np.random.default_rng(1)
    bank, labels = (
        torch.from_numpy(rng.standard_normal((50, 4))),
        torch.from_numpy(rng.integers(0, 3, 50)),
    )
    queries = torch.from_numpy(rng.standard_normal((17, 4)))
    whole = neighbor_ranks(bank, labels, queries, 3)
    monkeypatch.setattr(heads, "_ROOM", 150)  # type: ignore[attr-defined]
    assert torch.equal(whole, neighbor_ranks(bank, labels, queries, 3))


def test_length_does_not_count_and_a_small_bank_is_enough() -> None:
    bank = torch.tensor([[1.0, 0.0], [0.0, 1.0], [100.0, 1.0]])
    labels = torch.tensor([0, 1, 0])
    assert neighbor_ranks(bank, labels, torch.tensor([[0.01, 0.0], [0.0, 0.02]]), 2, k=1)[
        :, 0
    ].tolist() == [0, 1]
    assert neighbor_ranks(bank, labels, torch.tensor([[1.0, 1.0]]), 2)[0].tolist() == [0, 1]
