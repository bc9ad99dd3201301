"""Our CUDA kernels for eigenvalues, run on the CPU: numpy's answer in float64, for every kind of
matrix and size."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from matrices import kinds

from layerscope_gpu.emulator import launch, missing
from layerscope_gpu.solvers import band, pieces, small
from layerscope_gpu.solvers.pieces import halvings

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
SIZES = {32: (1, 2, 3, 9, 31), 64: (33, 64), 96: (4, 77), 128: (16, 17, 127), 192: (150,)}


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    for module in (small, band, pieces):
        monkeypatch.setattr(module, "launch", launch)


TWO_STAGES = band.BandVariant(
    32, 1, 4, ahead=2, chase_threads=64, chase_blocks=1
)  # for up to 128 rows


def by_band(given: torch.Tensor, overwrite: bool = False) -> torch.Tensor:
    return band.eigvalsh(given, overwrite, TWO_STAGES)


def assert_numpy(solve, n: int, largest_error: float = 5e-7) -> None:
    names, matrices = zip(*list(kinds(n, seed=n))[: 5 if n > 40 else None], strict=True)
    given = torch.from_numpy(np.stack(matrices)).float()
    before = given.clone()
    known = np.linalg.eigvalsh(given.double().numpy())
    found = solve(given).numpy()
    known, names = known[: len(found)], names[: len(found)]
    error = np.abs(found - known).max(-1) / np.abs(known).max(-1)
    assert dict(zip(names, error, strict=True)) == dict.fromkeys(
        names, pytest.approx(0, abs=largest_error)
    )
    assert (np.diff(found) >= 0).all()
    assert torch.equal(given, before)


@pytest.mark.parametrize("how", small.VARIANTS, ids=lambda how: f"up to {how.largest}")
def test_in_registers(how):
    for n in SIZES[how.largest]:
        assert_numpy(lambda given: small.eigvalsh(given, how), n)


@pytest.mark.parametrize("n", [1, 2, 3, 16, 17, 18, 33, 50])
def test_in_two_stages(n):
    """By one warp: fewer rows than a panel has columns at the end."""
    few = (lambda given: by_band(given[:4])) if n == 50 else by_band
    assert_numpy(few, n, 1e-6)  # "ones", whose rounding errors all have one direction, is worst


def test_in_two_stages_with_many_sweeps_at_once():
    assert_numpy(lambda given: by_band(given[:2]), 97)


def test_in_two_stages_by_several_warps():
    how = band.BandVariant(64, 1, 2, chase_threads=64, chase_blocks=1)
    assert_numpy(lambda given: band.eigvalsh(given[:1], variant=how), 110)


def test_the_first_stage_keeps_eigenvalues_in_a_band():
    n, how = 70, TWO_STAGES
    x = torch.randn(2, n, n, generator=torch.Generator().manual_seed(1))
    given, dense = x + x.mT, torch.zeros(2, n, n)
    bands = band.to_band(given, torch.full((2,), band.LARGEST_ENTRY), how)
    for below in range(17):
        dense += torch.diag_embed(bands[:, : n - below, below], -below)
        assert (bands[:, n - below :, below] == 0).all()
    known = np.linalg.eigvalsh(given.double().numpy())
    np.testing.assert_allclose(
        np.linalg.eigvalsh(dense.double().numpy()), known, atol=5e-7 * np.abs(known).max()
    )


def test_in_two_stages_with_rows_left_out():
    """Rows and columns of zeros, as of padding and of tokens left out, at both ends, in between,
    and nearly all."""
    x = torch.randn(4, 60, 90, generator=torch.Generator().manual_seed(2))
    given = x @ x.mT
    for some, (start, end) in enumerate(((0, 20), (40, 60), (7, 9), (1, 60))):
        given[some, start:end], given[some, :, start:end] = 0, 0
    known = np.linalg.eigvalsh(given.double().numpy())
    assert (np.abs(by_band(given).numpy() - known).max(-1) <= 5e-7 * known[:, -1]).all()


@pytest.mark.parametrize("n", [1, 5, 16, 50])
def test_bisection(n):
    """Tridiagonal matrices with entries that meet in zeros, over many orders of magnitude, and with
    equal eigenvalues."""
    rng, many = np.random.default_rng(n), (20, n)
    pairs = [
        (rng.integers(-1, 2, many), rng.integers(-1, 2, many)),
        (2.0 ** rng.integers(-20, 1, many), 2.0 ** rng.integers(-30, 1, many)),
        (
            10 ** rng.uniform(-12, 0, many) * rng.choice([-1, 1], many),
            10 ** rng.uniform(-12, 0, many),
        ),
        (rng.normal(size=many), rng.normal(size=many)),
        (np.full(many, 3.0), np.zeros(many)),
        (rng.random(many) < 0.1, np.zeros(many)),
        (
            np.abs(np.arange(n) - n // 2) * np.ones(many),
            np.ones(many),
        ),  # Wilkinson's: pairs that nearly meet
        (np.zeros(many), np.ones(many)),
    ]
    diagonal, beside = (
        torch.from_numpy(np.concatenate(one).astype(np.float32)) for one in zip(*pairs, strict=True)
    )
    found, threads = torch.empty_like(diagonal), 32  # so larger matrices take more than one turn
    held = 8 * (-(-n // 16) * 16) + 256 + 4 * threads
    arguments = [diagonal, beside, torch.ones(len(found)), found, n, halvings(threads)]
    launch(TWO_STAGES.source, "bisect", len(found), threads, held, arguments)
    off = torch.diag_embed(beside[:, : n - 1].double(), 1) if n > 1 else 0
    known = np.linalg.eigvalsh(
        np.asarray(torch.diag_embed(diagonal.double()) + off + (off.mT if n > 1 else 0))
    )
    assert (np.abs(found.numpy() - known).max(-1) <= 2e-7 * np.abs(known).max(-1)).all()


@pytest.mark.parametrize("solve", [small.eigvalsh, by_band])
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
    for solve in (small.eigvalsh, by_band):
        np.testing.assert_allclose(
            solve(given[:, 1:, 1:]),
            np.linalg.eigvalsh(given[:, 1:, 1:].double().numpy()),
            atol=5e-6,
        )


def test_in_place_where_it_is_allowed():
    given = torch.from_numpy(
        np.stack([m for name, m in kinds(8) if name in ("random", "sink")])
    ).float()
    known = by_band(given)
    assert torch.equal(by_band(given.clone(), overwrite=True), known)
