"""Bounds and invariances of method §2, on random matrices of many shapes and kinds."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope.metrics import matrix_entropy, spectrum_entropy
from layerscope.metrics.entropy import gram_entropy, smaller_gram
from layerscope.metrics.ranks import effective_rank, entropy_rank
from tests.metrics.support import compute, tensor

ALPHAS = (0.0, 0.05, 0.3, 0.7, 1 - 1e-9, 1.0, 1 + 1e-9, 1.5, 2.0, 4.0, 50.0, 1e4, math.inf)
TINY = 1e-9

quick = settings(max_examples=60, deadline=None, derandomize=True)
alphas = st.sampled_from(ALPHAS) | st.floats(0.0, 20.0)


@st.composite
def matrices(draw) -> torch.Tensor:
    n, d = draw(st.integers(1, 14)), draw(st.integers(1, 14))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["gaussian", "low rank", "anisotropic", "one large row", "steep"]))
    z = rng.normal(size=(n, d))
    if kind == "low rank":
        rank = draw(st.integers(1, 3))
        z = rng.normal(size=(n, rank)) @ rng.normal(size=(rank, d))
    if kind == "anisotropic":
        z += 20 * rng.normal(size=d)
    if kind == "one large row":
        z[0] *= 200
    if kind == "steep":
        z *= 0.5 ** np.arange(d)
    return tensor(z)


@st.composite
def spectra(draw) -> torch.Tensor:
    values = draw(
        st.lists(st.floats(0.0, 1.0) | st.just(0.0), min_size=2, max_size=10).filter(
            lambda v: max(v) > 1e-3
        )
    )
    return torch.tensor(values, dtype=torch.float64)


@quick
@given(matrices(), st.sampled_from(["raw", "unit", "centered", "centered-unit"]))
def test_non_increasing_in_alpha(z, rows):
    values = [matrix_entropy(z, alpha, rows).item() for alpha in ALPHAS]
    if math.isnan(values[0]):  # one row, centered
        assert all(math.isnan(v) for v in values)
        return
    for before, after in itertools.pairwise(values):
        assert after <= before + TINY


@quick
@given(spectra(), alphas, st.data())
def test_schur_concave(spectrum, alpha, data):
    """Moving weight from a larger eigenvalue to a smaller one (a T-transform) never lowers the
    entropy."""
    i, j = (
        data.draw(st.integers(0, len(spectrum) - 1)),
        data.draw(st.integers(0, len(spectrum) - 1)),
    )
    t = data.draw(st.floats(0.0, 1.0))
    mixed = spectrum.clone()
    mixed[i], mixed[j] = (
        t * spectrum[i] + (1 - t) * spectrum[j],
        (1 - t) * spectrum[i] + t * spectrum[j],
    )
    assert spectrum_entropy(mixed, alpha) >= spectrum_entropy(spectrum, alpha) - TINY
    even = torch.full_like(spectrum, spectrum.mean().item())
    assert spectrum_entropy(even, alpha).item() == pytest.approx(math.log(len(spectrum)), abs=TINY)


@quick
@given(matrices(), alphas)
def test_both_gram_matrices_give_the_same(z, alpha):
    a, b = gram_entropy(z @ z.mT, alpha), gram_entropy(z.mT @ z, alpha)
    assert a.item() == pytest.approx(b.item(), abs=1e-8)
    assert smaller_gram(z).shape == (min(z.shape),) * 2
    assert matrix_entropy(z.mT, alpha).item() == pytest.approx(
        matrix_entropy(z, alpha).item(), abs=1e-8
    )


@quick
@given(matrices())
def test_theorem_1_the_right_way_round(z):
    """1 ≤ entropy rank ≤ effective rank ≤ rank."""
    lam = torch.linalg.eigvalsh(smaller_gram(z)).clamp(min=0)
    rank = np.linalg.matrix_rank(z.numpy())
    small, large = entropy_rank(lam).item(), effective_rank(lam).item()
    assert 1 - TINY <= small <= large + TINY
    assert large <= rank + TINY


@quick
@given(spectra())
def test_continuous_in_alpha(spectrum):
    p = spectrum / spectrum.sum()
    p = p[p > 1e-6]
    for alpha in (1.0, 2.0):
        s = spectrum_entropy(p, alpha).item()
        for step in (1e-12, 1e-9, 1e-7):
            for side in (-1, 1):
                assert spectrum_entropy(p, alpha + side * step).item() == pytest.approx(
                    s, abs=1e3 * step + 1e-8
                )
    # at the switch between the two formulas near 1
    assert spectrum_entropy(p, 1 + 1.0001e-4).item() == pytest.approx(
        spectrum_entropy(p, 1 + 0.9999e-4).item(), abs=1e-6
    )
    s = spectrum_entropy(p, math.inf).item()
    # S_α − S_∞ ≤ log(n) / (α − 1)
    for alpha in (1e3, 1e6, 1e9):
        assert (
            abs(spectrum_entropy(p, alpha).item() - s)
            <= 3 * (math.log(len(p)) + abs(s)) / alpha + 1e-12
        )


def test_negative_eigenvalues_are_rounding():
    lam = torch.tensor([1.0, 1.0, -1e-17], dtype=torch.float64)
    for alpha in ALPHAS:
        assert spectrum_entropy(lam, alpha).item() == pytest.approx(math.log(2), abs=1e-12)


@quick
@given(st.integers(3, 12), st.integers(2, 8), st.integers(0, 2**32 - 1))
def test_prompt_entropy_is_at_most_the_log_of_tokens_or_width(length, d, seed):
    states = tensor(np.random.default_rng(seed).normal(size=(1, length, d)))
    value = compute("prompt_entropy", states).value
    assert -TINY <= value <= math.log(min(length - 1, d)) + TINY
