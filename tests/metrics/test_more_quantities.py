"""Spectral anisotropy, state norms and entropies with a Gaussian kernel: known answers, invariances and relations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope.metrics import Options, expand_names, get_metric, matrix_entropy, metrics
from layerscope.metrics.rbf_entropy import rbf_gram
from tests.metrics import reference as ref
from tests.metrics.support import accumulate, make_samples, tensor

quick = settings(max_examples=40, deadline=None, derandomize=True)
NEW = ("spectral_anisotropy", "state_norm", "prompt_entropy_rbf", "dataset_entropy_rbf")


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


# --- a kernel that is not linear ----------------------------------------------------------------------------------------------


def test_equal_distances_have_a_closed_form() -> None:
    """All rows of a simplex are as far apart: K has 1 + (n − 1) c once and 1 − c otherwise, c = e^(−1/2)."""
    n, c = 6, math.exp(-0.5)
    p = np.array([1 + (n - 1) * c, *[1 - c] * (n - 1)]) / n
    expected = float(-(p * np.log(p)).sum())
    assert value("dataset_entropy_rbf", np.eye(n)) == pytest.approx(expected, abs=1e-12)
    assert value("prompt_entropy_rbf", np.eye(n)[None]) == pytest.approx(expected, abs=1e-12)
    assert value("dataset_entropy_rbf", np.eye(n), Options(alpha=2)) == pytest.approx(-math.log((p**2).sum()), abs=1e-12)


def test_it_sees_distances_where_the_linear_one_sees_directions() -> None:
    line = np.arange(12.0)[:, None] * np.ones((1, 3))
    assert value("dataset_entropy", line, Options(pooled_rows="centered")) == pytest.approx(0, abs=1e-9)
    assert value("dataset_entropy_rbf", line, Options(pooled_rows="centered")) > 0.5
    assert value("dataset_entropy_rbf", np.ones((5, 3)), Options(pooled_rows="raw")) == pytest.approx(0, abs=1e-12)
    assert math.isnan(value("dataset_entropy_rbf", np.ones((5, 3))))  # centered, no row has a direction
    # most rows equal: the median distance is 0, the smallest of the others is taken
    few = np.concatenate([np.zeros((9, 2)), np.ones((1, 2))])
    assert math.isfinite(value("dataset_entropy_rbf", few, Options(pooled_rows="raw")))


@quick
@given(st.integers(2, 10), st.integers(1, 8), st.floats(1e-3, 1e3), st.integers(0, 2**32 - 1))
def test_invariances_and_bounds(n: int, d: int, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, d))
    gram = rbf_gram(tensor(z))
    assert torch.allclose(gram, rbf_gram(tensor(scale * z + 4)), atol=1e-6)  # the width follows the data
    assert torch.linalg.eigvalsh(gram).min() > -1e-9
    assert bool((gram.diagonal() == 1).all())
    found = value("dataset_entropy_rbf", z, Options(pooled_rows="raw"))
    assert -1e-9 <= found <= math.log(n) + 1e-9


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, math.inf])
@pytest.mark.parametrize("rows", ["raw", "unit", "centered-unit"])
def test_against_the_reference(alpha: float, rows: str) -> None:
    s = make_samples(15, 7)
    options = Options(alpha=alpha, pooled_rows=rows, rows=rows)  # type: ignore[arg-type]
    found = accumulate("dataset_entropy_rbf", s, 4, options=options).compute().value
    assert found == pytest.approx(ref.rbf_entropy(s.pooled, alpha, rows), abs=1e-9)
    expected = np.mean([ref.rbf_entropy(t, alpha, rows) for t in s.tokens])
    assert accumulate("prompt_entropy_rbf", s, 4, options=options).compute().value == pytest.approx(expected, abs=1e-9)


def test_its_error_leaves_folds_out() -> None:
    for n in (40, 83):  # solved, and by quadrature; a few prompts are in no fold
        s = make_samples(n, 10)
        s.keys = np.arange(n)
        size = n // 20
        z = ref.prepare(s.pooled, "centered-unit")
        d = ((z[:, None] - z[None]) ** 2).sum(-1)
        gram = np.exp(-d / (2 * np.median(d[np.triu_indices(n, 1)])))
        left = []
        for g in range(20):
            stay = np.array([i for i in range(n) if not (i % 20 == g and i < 20 * size)])
            left.append(ref._psd_entropy(gram[np.ix_(stay, stay)], 1.0))
        expected = math.sqrt((n - size) / size * np.square(np.array(left) - np.mean(left)).mean())
        assert accumulate("dataset_entropy_rbf", s).compute().se == pytest.approx(expected, rel=1e-3)
