"""Sums over spectra with rows left out: the same as solving what is left."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope.spectra import resolvents
from layerscope_gpu import factors
from layerscope_gpu.metrics import sums
from tests.kernels import needs_emulator, use_kernels

KINDS = ("plain", "decaying", "steep", "one direction", "clusters", "repeated", "few directions")


WAYS: dict[str, Callable[..., tuple[torch.Tensor, torch.Tensor]]] = {
    "eigenvectors": resolvents.sums_without,
    "inverses": sums.sums_without,
}


def rows(kind: str, n: int, d: int, seed: int = 0) -> np.ndarray:
    """Centered rows of length 1 with all sorts of spectra."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, d))
    some = rng.normal(size=(7, d))[rng.integers(7, size=n)]
    z = {
        "plain": z,
        "decaying": z * np.arange(1, d + 1) ** -0.5,
        "steep": z * np.arange(1, d + 1) ** -2.0,
        "one direction": z * np.where(np.arange(d) == 0, 300.0, 1.0),
        "clusters": some + 0.01 * z,
        "repeated": some,
        "few directions": z[:, :3] @ rng.normal(size=(3, d)),
    }[kind]
    z = z - z.mean(0)
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def direct(gram: np.ndarray) -> list[float]:
    """The four sums, straight from the eigenvalues."""
    x = np.linalg.eigvalsh(gram)
    x = x[x > len(x) * np.finfo(float).eps * x.max()]
    return [x.sum(), (x * np.log(x)).sum(), np.sqrt(x).sum(), (np.sqrt(x) * np.log(x)).sum()]


def folds(n: int, count: int) -> list[torch.Tensor]:
    sets = [torch.arange(first, n, count) for first in range(count)]
    sizes = sorted({len(some) for some in sets}, reverse=True)
    return [torch.stack([some for some in sets if len(some) == size]) for size in sizes]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [64, 83, 130])
def test_the_same_as_solving_what_is_left(n: int, kind: str, way: str) -> None:
    grams = [z @ z.T for z in (rows(kind, n, 150, seed) for seed in range(2))]
    members = folds(n, 20)
    whole, without = WAYS[way](torch.tensor(np.stack(grams)), members)
    assert without.shape == (2, 20, 4)
    sets = [some for part in members for some in part.tolist()]
    for i, gram in enumerate(grams):
        np.testing.assert_allclose(whole[i], direct(gram), rtol=2e-4, atol=1e-6 * n)
        for j, some in enumerate(sets):
            stay = np.setdiff1d(np.arange(n), some)
            want = direct(gram[np.ix_(stay, stay)])
            got = without[i, j].tolist()
            assert got[0] == pytest.approx(want[0], rel=1e-12)
            assert got[1] == pytest.approx(want[1], abs=5e-6 * n)  # so an entropy is right to 5e-6
            # eigenvalues under 1e-10 of the mean are guessed at: a root lifts them
            assert got[2:] == pytest.approx(want[2:], rel=2e-4, abs=2e-4)


@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize(("grid", "nats"), [(resolvents.USUAL, 5e-6), (sums.FINE, 1e-8)])
def test_how_close_each_grid_comes(grid: resolvents.Grid, nats: float, decay: float) -> None:
    z = np.random.default_rng(0).normal(size=(150, 200)) * np.arange(1, 201) ** -decay
    want = direct(z @ z.T)
    got = sums.sums_without(torch.tensor(z @ z.T).unsqueeze(0), [], grid)[0][0].tolist()
    entropy = [math.log(s[0]) - s[1] / s[0] for s in (got, want)]
    assert entropy[0] == pytest.approx(entropy[1], abs=nats)
    rank = [math.log(s[2]) - s[3] / (2 * s[2]) for s in (got, want)]
    assert rank[0] == pytest.approx(
        rank[1], abs=2e-4
    )  # with eigenvalues over 16 orders of magnitude


@settings(deadline=None, max_examples=25)
@given(
    n=st.integers(4, 90), count=st.integers(3, 30), scale=st.floats(-8, 8), seed=st.integers(0, 99)
)
def test_any_folds_at_any_scale(n: int, count: int, scale: float, seed: int) -> None:
    gram = rows("decaying", n, 100, seed) * 10**scale
    gram = gram @ gram.T
    members = folds(n, min(count, n))
    _, by_vectors = resolvents.sums_without(torch.tensor(gram).unsqueeze(0), members)
    _, through_inverses = sums.sums_without(torch.tensor(gram).unsqueeze(0), members)
    first = members[0][0].tolist()
    want = direct(np.delete(np.delete(gram, first, 0), first, 1))
    for got in (by_vectors[0, 0], through_inverses[0, 0]):
        entropy = [math.log(s[0]) - s[1] / s[0] for s in (got.tolist(), want)]
        assert entropy[0] == pytest.approx(entropy[1], abs=5e-6)
        assert got[2].item() == pytest.approx(want[2], rel=2e-4)


def test_a_matrix_of_zeros_has_no_entropy() -> None:
    whole, without = sums.sums_without(torch.zeros(1, 30, 30, dtype=torch.float64), folds(30, 10))
    assert whole[0, 0] == 0
    assert whole[0, 1:].isnan().all()
    assert without[0, :, 1:].isnan().all()


def positive(n: int, count: int = 3, seed: int = 0) -> torch.Tensor:
    base = torch.from_numpy(np.random.default_rng(seed).normal(size=(count, n, n + 5)))
    return base @ base.mT + 1e-3 * torch.eye(n, dtype=torch.float64)


def lower_half(matrices: torch.Tensor) -> torch.Tensor:
    """What is above the diagonal is not to be read."""
    return torch.where(torch.ones_like(matrices).triu(1) > 0, torch.nan, matrices)


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 130, 257])
def test_inverse_factors(n: int) -> None:
    matrices = positive(n)
    found = factors.inverse_factor(lower_half(matrices))
    assert (found.triu(1) == 0).all()
    torch.testing.assert_close(found.mT @ found, torch.linalg.inv(matrices), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(factors.log_determinant(found), torch.logdet(matrices))


def test_what_is_not_positive_definite_is_not_a_number() -> None:
    matrices = positive(70)
    matrices[1, 3, 3] = -1.0
    found = factors.log_determinant(factors.inverse_factor(matrices))
    assert found.isnan().tolist() == [False, True, False]


@needs_emulator
@pytest.mark.parametrize("n", [1, 3, 37, 64])
def test_the_kernel_does_the_same(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernels(monkeypatch, factors)
    around = torch.zeros(2, 70, 71, dtype=torch.float64)  # a block inside larger matrices
    matrices = positive(n, count=2)
    around[:, 2 : 2 + n, 5 : 5 + n] = lower_half(matrices)
    block = around[:, 2 : 2 + n, 5 : 5 + n]
    factors._leaf_kernel(block)
    torch.testing.assert_close(
        block, factors.inverse_factor(matrices.clone()), rtol=1e-9, atol=1e-9
    )
    block.zero_()
    assert (around == 0).all()
    bad = -positive(n, count=1)
    factors._leaf_kernel(bad)
    assert bad.isnan().any()
