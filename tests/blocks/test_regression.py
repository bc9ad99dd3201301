"""Ridge regression over chunks of tokens, against float64 references."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from layerscope.blocks.refit import Ridge

WEIGHTS = np.random.default_rng(5).normal(size=(8, 3))


def problem(tokens: int = 400, noise: float = 0.1) -> tuple[np.ndarray, ...]:
    """Features, scale, targets and a mask of held-out tokens; the last weight is the offset's."""
    rng = np.random.default_rng(0)
    features, scale = rng.normal(size=(tokens, 7)), rng.uniform(0.5, 2, tokens)
    targets = (features @ WEIGHTS[:7] + WEIGHTS[7]) * scale[:, None]
    targets += noise * rng.normal(size=(tokens, 3))
    return features, scale, targets, np.arange(tokens) % 5 == 0


def solve(parts: tuple[np.ndarray, ...], penalties: tuple[float, ...], offset: bool = True):
    ridge = Ridge(7, 3, offset, torch.device("cpu"))
    for rows in np.array_split(np.arange(len(parts[0])), 3):
        ridge.add(*(torch.tensor(part[rows]) for part in parts))
    return ridge.solve(penalties)


def reference(features, scale, targets, penalty: float, offset: bool = True) -> np.ndarray:
    """The penalized weights, by the textbook's formula."""
    rows = np.hstack([features, np.ones((len(features), 1))])[:, : 7 + offset] * scale[:, None]
    added = np.zeros(7 + offset)
    added[:7] = penalty * (rows[:, :7] ** 2).sum(0).mean()
    return np.linalg.solve(rows.T @ rows + np.diag(added), rows.T @ targets)


@pytest.mark.parametrize("offset", [True, False])
def test_it_solves_the_penalized_problem(offset: bool):
    parts = problem()
    solution = solve(parts, (0.1,), offset)
    expected = reference(*parts[:3], 0.1, offset)
    np.testing.assert_allclose(solution.weight, expected[:7], atol=1e-5)
    np.testing.assert_allclose(solution.bias, expected[7] if offset else np.zeros(3), atol=1e-5)


def test_linear_targets_are_found():
    solution = solve(problem(4000, noise=0.0), (1e-6, 1.0))
    assert solution.penalty == 1e-6
    assert solution.remaining < 1e-6
    np.testing.assert_allclose(solution.weight, WEIGHTS[:7], atol=1e-3)
    np.testing.assert_allclose(solution.bias, WEIGHTS[7], atol=1e-3)


def test_a_fit_that_does_not_help_held_out_tokens_is_left():
    features, scale, _, _ = problem(18)
    targets = np.random.default_rng(1).normal(size=(18, 3))
    assert solve((features, scale, targets, np.arange(18) % 2 == 0), (1e-6,)) is None


def test_the_error_is_that_of_held_out_tokens():
    features, scale, targets, held_out = problem(noise=1.0)
    solution = solve((features, scale, targets, held_out), (0.01, 1.0))
    fitted = ~held_out
    weights = reference(features[fitted], scale[fitted], targets[fitted], solution.penalty)
    rows = np.hstack([features, np.ones((400, 1))]) * scale[:, None]
    error = ((targets - rows @ weights)[held_out] ** 2).sum()
    assert solution.remaining == pytest.approx(error / (targets[held_out] ** 2).sum(), rel=1e-4)
