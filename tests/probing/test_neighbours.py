"""Nearest neighbours against numpy."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch

from layerscope.probing import neighbours
from layerscope.probing.neighbours import neighbour_ranks


def by_hand(bank: np.ndarray, labels: np.ndarray, query: np.ndarray, classes: int, k: int) -> list[int]:
    """Votes counted one by one in float64."""
    cosines = bank @ query / np.linalg.norm(bank, axis=1) / np.linalg.norm(query)
    near = np.argsort(-cosines, kind="stable")[:k]
    votes, weight = Counter(labels[near].tolist()), Counter()
    for i in near:
        weight[int(labels[i])] += cosines[i]
    return sorted(range(classes), key=lambda c: (-votes[c], -weight[c], c))


def test_against_numpy(monkeypatch: object) -> None:
    rng = np.random.default_rng(0)
    bank, labels, queries = rng.standard_normal((90, 8)), rng.integers(0, 6, 90), rng.standard_normal((40, 8))
    found = neighbour_ranks(torch.from_numpy(bank), torch.from_numpy(labels), torch.from_numpy(queries), 6)
    for i, query in enumerate(queries):
        expected = by_hand(bank, labels, query, 6, 20)
        voted = [c for c in expected if c in set(labels.tolist())]
        assert found[i, :3].tolist() == voted[:3]


def test_the_size_of_the_pieces_changes_nothing(monkeypatch: object) -> None:
    rng = np.random.default_rng(1)
    bank, labels = torch.from_numpy(rng.standard_normal((50, 4))), torch.from_numpy(rng.integers(0, 3, 50))
    queries = torch.from_numpy(rng.standard_normal((17, 4)))
    whole = neighbour_ranks(bank, labels, queries, 3)
    monkeypatch.setattr(neighbours, "_ROOM", 150)  # type: ignore[attr-defined]
    assert torch.equal(whole, neighbour_ranks(bank, labels, queries, 3))


def test_length_does_not_count_and_a_small_bank_is_enough() -> None:
    bank = torch.tensor([[1.0, 0.0], [0.0, 1.0], [100.0, 1.0]])
    labels = torch.tensor([0, 1, 0])
    assert neighbour_ranks(bank, labels, torch.tensor([[0.01, 0.0], [0.0, 0.02]]), 2, k=1)[:, 0].tolist() == [0, 1]
    assert neighbour_ranks(bank, labels, torch.tensor([[1.0, 1.0]]), 2)[0].tolist() == [0, 1]
