"""Entropies of prefixes, all at once, against eigenvalues solved from scratch by numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope_paper.studies.prefix_entropies import (
    entropies_of_prefixes,
    entropy_sum,
    prefix_entropies,
)


def direct(rows: np.ndarray) -> float:
    """S_1 of prepared rows by numpy's singular values."""
    sigma = np.linalg.svd(rows, compute_uv=False) ** 2
    p = sigma / sigma.sum()
    p = p[p > 1e-300]
    return float(-(p * np.log(p)).sum())


def prepared(x: np.ndarray) -> np.ndarray:
    out = x - x.mean(0)
    return out / np.linalg.norm(out, axis=1, keepdims=True)


def walk(n: int, d: int, kind: str, seed: int = 0) -> np.ndarray:
    """States like a model's: a decaying spectrum, neighbors alike, and perhaps a huge first
    token."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) * np.arange(1, d + 1) ** -0.5
    x[1:] += 0.4 * x[:-1]
    x += 2.0 * rng.normal(size=d) / np.sqrt(d)
    if kind == "sink":
        x[0] *= 100
    if kind == "late":
        x[n // 2] *= 1000
    if kind == "twins":
        x[1::2] = x[: len(x[1::2]) * 2 : 2]
    return x


def test_the_sum_of_logarithms_is_x_log_x() -> None:
    fit = entropy_sum()
    x = np.concatenate([[0.0], np.exp(np.linspace(-45, 0, 4001))])
    wanted = x * np.log(np.maximum(x, 1e-300))
    assert np.all(np.abs(fit(x) - wanted) <= 2e-7 * (x + fit.floor))


@pytest.mark.parametrize("kind", ["plain", "sink", "late", "twins"])
def test_rows_of_any_length_match_numpy(kind: str) -> None:
    x = walk(120, 40, kind)
    found = prefix_entropies(torch.from_numpy(x @ x.T)).numpy()
    assert np.abs(found - [direct(x[:n]) for n in range(1, 121)]).max() < 1e-6


@pytest.mark.parametrize("kind", ["plain", "sink", "late", "twins"])
def test_rows_centered_on_the_whole_prompt_match_numpy(kind: str) -> None:
    x = walk(90, 30, kind)
    found = entropies_of_prefixes(torch.from_numpy(x), range(1, 91), "prompt").numpy()
    assert np.abs(found - [direct(prepared(x)[:n]) for n in range(1, 91)]).max() < 1e-6


def test_a_few_prefixes_and_every_other_one() -> None:
    x = walk(120, 40, "plain")
    found = entropies_of_prefixes(torch.from_numpy(x), range(2, 121, 2), "prompt").numpy()
    assert np.abs(found - [direct(prepared(x)[:n]) for n in range(2, 121, 2)]).max() < 1e-6
    own = entropies_of_prefixes(torch.from_numpy(x), range(2, 121, 2), "prefix").numpy()
    assert np.abs(own - [direct(prepared(x[:n])) for n in range(2, 121, 2)]).max() < 1e-9


def test_known_answers() -> None:
    assert torch.allclose(
        prefix_entropies(torch.eye(9)), torch.arange(1, 10).double().log(), atol=1e-6
    )
    same = torch.ones(6, 6)
    assert prefix_entropies(same).abs().max() < 1e-6
    assert torch.isnan(prefix_entropies(torch.zeros(3, 3))).all()
    with pytest.raises(ValueError, match="not a Gram matrix"):
        prefix_entropies(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 30), st.integers(1, 20), st.integers(0, 10_000), st.floats(0.1, 30.0))
def test_bounds_and_invariances(n: int, d: int, seed: int, scale: float) -> None:
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)))
    entropy = prefix_entropies(x @ x.T)
    assert (entropy >= 0).all()
    assert (entropy <= torch.arange(1, n + 1).clamp(max=d).double().log() + 1e-6).all()
    assert torch.allclose(prefix_entropies(scale * x @ x.T), entropy, atol=1e-6)
