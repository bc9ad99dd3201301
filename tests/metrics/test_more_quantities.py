"""Spectral anisotropy and state norms: known answers, invariances and relations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope.metrics import Options, expand_names, get_metric, matrix_entropy, metrics
from tests.metrics.support import tensor

quick = settings(max_examples=40, deadline=None, derandomize=True)
NEW = ("spectral_anisotropy", "state_norm")


def value(name: str, data: np.ndarray, options: Options | None = None) -> float:
    return get_metric(name)(options).update(tensor(data)).compute().value


def test_they_are_measured_where_they_are_named() -> None:
    assert set(NEW) <= set(metrics())
    assert not set(NEW) & set(expand_names("all"))
    assert not set(NEW) & set(expand_names(None))
    assert expand_names("paper,state_norm")[-1] == "state_norm"


# --- anisotropy ---------------------------------------------------------------------------------------------------------------


@quick
@given(st.integers(3, 14), st.integers(2, 14), st.integers(0, 2**32 - 1))
def test_spectral_anisotropy_is_the_entropy_of_infinite_order(n: int, d: int, seed: int) -> None:
    """Razzhigaev's σ₁² / Σ σ² = exp(−S_∞) of the centered rows, exactly."""
    z = np.random.default_rng(seed).normal(size=(n, d)) + 3
    found = value("spectral_anisotropy", z)
    assert found == pytest.approx(math.exp(-matrix_entropy(tensor(z), math.inf, "centered").item()), rel=1e-12)
    assert 1 / min(n - 1, d) - 1e-12 <= found <= 1 + 1e-12
    second = matrix_entropy(tensor(z), 2.0, "centered").item()
    assert -math.log(found) - 1e-9 <= second <= -2 * math.log(found) + 1e-9


def test_spectral_anisotropy_known_answers() -> None:
    axes = np.concatenate([np.eye(5), -np.eye(5)])
    assert value("spectral_anisotropy", axes) == pytest.approx(1 / 5)
    assert value("spectral_anisotropy", np.outer(np.arange(6.0), [1, 2, 3]) + 7) == pytest.approx(1)  # a line, anywhere
    z = np.random.default_rng(0).normal(size=(20, 6))
    turned = np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))[0]
    assert value("spectral_anisotropy", 5 * z @ turned + 100) == pytest.approx(value("spectral_anisotropy", z), rel=1e-9)


# --- norms --------------------------------------------------------------------------------------------------------------------


def test_state_norm_known_answers() -> None:
    states = np.zeros((2, 3, 4))
    states[0, :, 0] = [1, 2, 30]
    states[1, :, 1] = 5
    metric = get_metric("state_norm")()
    assert metric.measure(tensor(states), torch.ones(2, 3, dtype=torch.bool)).tolist() == [11.0, 5.0]
    mask = torch.tensor([[True, True, False], [False, False, False]])
    kept = metric.measure(tensor(states), mask)
    assert kept[0] == 1.5
    assert math.isnan(kept[1])
    assert value("state_norm", 2 * states) == pytest.approx(2 * value("state_norm", states))
