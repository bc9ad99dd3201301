"""Ridge regression over chunks of tokens, against float64 references."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from layerscope.blocks.regression import Ridge


def problem(tokens: int = 400, seed: int = 0, noise: float = 0.1):
    rng = np.random.default_rng(seed)
    features, scale = rng.normal(size=(tokens, 7)), rng.uniform(0.5, 2, tokens)
    weights, bias = rng.normal(size=(7, 3)), rng.normal(size=3)
    targets = (features @ weights + bias) * scale[:, None] + noise * rng.normal(size=(tokens, 3))
    return features, scale, targets, weights, bias


def fitted(features, scale, targets, held, offset=True, chunks=3) -> Ridge:
    ridge = Ridge(7, 3, offset, torch.device("cpu"))
    for part in np.array_split(np.arange(len(features)), chunks):
        given = (torch.tensor(one[part]) for one in (features, scale, targets, held))
        ridge.add(*given)
    return ridge


@pytest.mark.parametrize("offset", [True, False])
def test_it_solves_the_penalized_problem(offset: bool):
    features, scale, targets, _, _ = problem()
    held = np.arange(len(features)) % 5 == 0
    solution = fitted(features, scale, targets, held, offset).solve((0.1,))
    assert solution is not None
    rows = np.hstack([features, np.ones((len(features), 1))])[:, : 7 + offset] * scale[:, None]
    penalty = np.zeros(7 + offset)
    penalty[:7] = 0.1 * (rows[:, :7] ** 2).sum(0).mean()
    expected = np.linalg.solve(rows.T @ rows + np.diag(penalty), rows.T @ targets)
    np.testing.assert_allclose(solution.weight, expected[:7], atol=1e-5)
    np.testing.assert_allclose(solution.bias, expected[7] if offset else np.zeros(3), atol=1e-5)


def test_what_is_linear_is_found():
    features, scale, targets, weights, bias = problem(4000, noise=0.0)
    held = np.arange(len(features)) % 5 == 0
    solution = fitted(features, scale, targets, held).solve((1e-6, 1.0))
    assert solution is not None
    assert solution.penalty == 1e-6
    assert solution.remaining < 1e-6
    np.testing.assert_allclose(solution.weight, weights, atol=1e-3)
    np.testing.assert_allclose(solution.bias, bias, atol=1e-3)


def test_what_does_not_help_held_out_tokens_is_left():
    rng = np.random.default_rng(1)
    features, scale, targets = rng.normal(size=(12, 7)), np.ones(12), rng.normal(size=(12, 3))
    held = np.arange(12) % 2 == 0
    ridge = fitted(features, scale, targets, held, chunks=1)
    assert ridge.solve((1e-6,)) is None


def test_the_error_is_that_of_held_out_tokens():
    features, scale, targets, _, _ = problem(noise=1.0)
    held = np.arange(len(features)) % 5 == 0
    solution = fitted(features, scale, targets, held).solve((0.01, 1.0))
    assert solution is not None
    rows = np.hstack([features, np.ones((len(features), 1))]) * scale[:, None]
    kept, tested = rows[~held], rows[held]
    penalty = np.diag([solution.penalty * (kept[:, :7] ** 2).sum(0).mean()] * 7 + [0.0])
    weights = np.linalg.solve(kept.T @ kept + penalty, kept.T @ targets[~held])
    left = ((targets[held] - tested @ weights) ** 2).sum() / (targets[held] ** 2).sum()
    assert solution.remaining == pytest.approx(left, rel=1e-4)
