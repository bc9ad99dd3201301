"""Our CUDA kernels for eigenvalues, run on the CPU: numpy's answer in float64, for every kind of matrix and size."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from layerscope.spectra.solvers import small, tridiagonal
from layerscope.spectra.solvers.pieces import halvings
from tests.cuda_on_cpu import launch, missing
from tests.spectra.matrices import kinds

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
SHARED = 232448
SIZES = {32: (1, 2, 3, 9, 31), 64: (33, 64), 96: (4, 77), 128: (16, 17, 127), 192: (150,)}


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setattr(tridiagonal, "launch", launch)
    monkeypatch.setattr(tridiagonal, "shared_memory", lambda index: SHARED)
    monkeypatch.setattr(small, "launch", launch)


def assert_numpy(solve, n: int, largest_error: float = 5e-7) -> None:
    names, matrices = zip(*list(kinds(n, seed=n))[: 5 if n > 40 else None], strict=True)
    given = torch.from_numpy(np.stack(matrices)).float()
    before = given.clone()
    known = np.linalg.eigvalsh(given.double().numpy())
    found = solve(given).numpy()
    known, names = known[: len(found)], names[: len(found)]
    error = np.abs(found - known).max(-1) / np.abs(known).max(-1)
    assert dict(zip(names, error, strict=True)) == dict.fromkeys(names, pytest.approx(0, abs=largest_error))
    assert (np.diff(found) >= 0).all()
    assert torch.equal(given, before)


@pytest.mark.parametrize("how", small.VARIANTS, ids=lambda how: f"up to {how.largest}")
def test_in_registers(how):
    for n in SIZES[how.largest]:
        assert_numpy(lambda given: small.eigvalsh(given, how), n)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 17, 34])
def test_in_panels(n):
    assert_numpy(tridiagonal.eigvalsh, n)


@pytest.mark.parametrize("shared", [SHARED, 0], ids=["half of the matrix", "all of it"])
@pytest.mark.parametrize("n", [2, 9, 43])
def test_in_panels_by_larger_blocks(n, shared):
    how = tridiagonal.variant(200, shared)
    assert how.half == (shared > 0)
    assert_numpy(lambda given: tridiagonal.eigvalsh(given, how=how), n)


def test_in_panels_with_many_warps():
    how = tridiagonal.variant(600, SHARED)
    assert (how.threads, how.half) == (512, 1)
    assert_numpy(lambda given: tridiagonal.eigvalsh(given[:3], how=how), 141)


@pytest.mark.parametrize("n", [1, 5, 16, 50])
def test_bisection(n):
    """Tridiagonal matrices with entries that meet in zeros, over many orders of magnitude, and with equal eigenvalues."""
    rng, many = np.random.default_rng(n), (20, n)
    pairs = [
        (rng.integers(-1, 2, many), rng.integers(-1, 2, many)),
        (2.0 ** rng.integers(-20, 1, many), 2.0 ** rng.integers(-30, 1, many)),
        (10 ** rng.uniform(-12, 0, many) * rng.choice([-1, 1], many), 10 ** rng.uniform(-12, 0, many)),
        (rng.normal(size=many), rng.normal(size=many)),
        (np.full(many, 3.0), np.zeros(many)),
        (rng.random(many) < 0.1, np.zeros(many)),
        (np.abs(np.arange(n) - n // 2) * np.ones(many), np.ones(many)),  # Wilkinson's: pairs that nearly meet
        (np.zeros(many), np.ones(many)),
    ]
    diagonal, beside = (torch.from_numpy(np.concatenate(one).astype(np.float32)) for one in zip(*pairs, strict=True))
    found, threads = torch.empty_like(diagonal), 32  # so larger matrices take more than one turn
    held = 8 * (-(-n // 16) * 16) + 256 + 4 * threads
    arguments = [diagonal, beside, torch.ones(len(found)), found, n, halvings(threads)]
    launch(tridiagonal.variant(300, SHARED).source, "bisect", len(found), threads, held, arguments)
    off = torch.diag_embed(beside[:, : n - 1].double(), 1) if n > 1 else 0
    known = np.linalg.eigvalsh(np.asarray(torch.diag_embed(diagonal.double()) + off + (off.mT if n > 1 else 0)))
    assert (np.abs(found.numpy() - known).max(-1) <= 2e-7 * np.abs(known).max(-1)).all()


@pytest.mark.parametrize("solve", [small.eigvalsh, tridiagonal.eigvalsh])
@pytest.mark.parametrize("n", [1, 6, 40])
def test_zero_and_not_a_number(solve, n):
    given = torch.eye(n).repeat(5, 1, 1)
    given[1] = 0
    given[2, n - 1, n // 2] = given[2, n // 2, n - 1] = math.nan
    given[3, 0, 0] = math.inf
    found = solve(given)
    assert torch.allclose(found[[0, 4]], torch.ones(2, n), atol=2e-7)
    assert (found[1] == 0).all()
    assert found[[2, 3]].isnan().all()


def test_views_that_are_not_contiguous():
    given = torch.randn(9, 9, 3).permute(2, 0, 1)
    given = given + given.mT
    for solve in (small.eigvalsh, tridiagonal.eigvalsh):
        np.testing.assert_allclose(solve(given[:, 1:, 1:]), np.linalg.eigvalsh(given[:, 1:, 1:].double().numpy()), atol=5e-6)


def test_in_place_where_it_is_allowed():
    given = torch.from_numpy(np.stack([m for name, m in kinds(8) if name in ("random", "sink")])).float()
    known = tridiagonal.eigvalsh(given)
    assert torch.equal(tridiagonal.eigvalsh(given.clone(), overwrite=True), known)
