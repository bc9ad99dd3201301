"""Entropies from determinants of bands, run on the CPU: numpy's in float64, and how close the terms
can be."""

from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from matrices import kinds

from layerscope_gpu.emulator import launch, missing
from layerscope_gpu.solvers import band, determinants, pieces

emulated = pytest.mark.skipif(missing() is not None, reason=str(missing()))
HOW = band.BandVariant(32, 1, 4, ahead=2)  # for up to 128 rows


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setattr(band, "launch", launch)
    monkeypatch.setattr(determinants, "launch", launch)


def terms(p: np.ndarray) -> np.ndarray:
    shifts = np.logspace(
        math.log10(determinants.SMALLEST_SHIFT),
        math.log10(determinants.LARGEST_SHIFT),
        determinants.SHIFTS,
    )
    return np.column_stack([shifts * np.log1p(p[:, None] / shifts), p, p**2])


def test_the_terms_are_close_to_p_log_p_everywhere():
    p = np.concatenate([np.logspace(-15, 0, 40_000), np.linspace(1e-4, 1, 20_000)])
    error = np.abs(terms(p) @ determinants.WEIGHTS - p * np.log(p)) / (p + 1 / 1024)
    assert 5e-7 < error.max() < 8.5e-7
    assert terms(np.zeros(1)).tolist() == [
        [0.0] * (determinants.SHIFTS + 2)
    ]  # rows of zeros add nothing


def test_no_weights_do_much_better():
    """The least largest error by reweighting, at as many points as tell it."""
    p = np.logspace(-12, 0, 1500)
    given, wanted, close, share = terms(p), p * np.log(p), 1 / (p + 1 / 1024), np.ones(1500)
    least = math.inf
    for _ in range(60):
        by = close * np.sqrt(share)
        size = np.linalg.norm(given * by[:, None], axis=0)
        found = np.linalg.lstsq(given * by[:, None] / size, wanted * by, rcond=1e-14)[0] / size
        error = np.abs(given @ found - wanted) * close
        least = min(least, error.max())
        share *= error / error.max() + 1e-3
        share /= share.sum()
    assert least == pytest.approx(8.3e-7, rel=0.15)


def known_entropy(gram: np.ndarray) -> float:
    p = np.linalg.eigvalsh(gram).clip(min=0)
    p = p[p > 0] / p.sum()
    return float(-(p * np.log(p)).sum())


@emulated
@pytest.mark.parametrize("n", [1, 2, 16, 17, 50])
def test_entropy(n):
    given = {
        name: matrix for name, matrix in kinds(n, seed=n) if name not in ("indefinite", "diagonal")
    }
    matrices = torch.from_numpy(np.stack(list(given.values()))).float()
    before = matrices.clone()
    found = determinants.entropy(matrices, HOW)
    known = [known_entropy(matrix.double().numpy()) for matrix in matrices]
    assert dict(zip(given, found.tolist(), strict=True)) == {
        name: pytest.approx(value, abs=1e-5) for name, value in zip(given, known, strict=True)
    }
    assert torch.equal(matrices, before)


@emulated
def test_rows_of_zeros_change_nothing_and_nothing_is_not_a_number():
    x = torch.randn(4, 40, 60, generator=torch.Generator().manual_seed(1))
    x[1, 20:] = 0
    x[2] = 0
    x[3, 5, 7] = math.nan
    found = determinants.entropy(x @ x.mT, HOW)
    short = determinants.entropy(x[1:2, :20] @ x[1:2, :20].mT, HOW)
    assert found[1] == pytest.approx(short.item(), abs=1e-6)
    assert found.isnan().tolist() == [False, False, True, True]


@emulated
def test_rounding_that_makes_eigenvalues_negative_stays_small():
    """One direction, rounded, among rows of zeros: pivots near zero would let the entries beside
    them grow without end."""
    generator, n = torch.Generator().manual_seed(1), 48
    x, noise = torch.randn(4, n, 1, generator=generator), torch.randn(4, n, n, generator=generator)
    gram = x @ x.mT + 1e-6 * n * (noise + noise.mT) / n**0.5
    gram[:, 1::2], gram[:, :, 1::2] = 0, 0
    assert (np.linalg.eigvalsh(gram.double().numpy())[:, 0] < -1e-7).all()
    assert determinants.entropy(gram, HOW).abs().max() < 3e-4


@emulated
def test_matrices_of_the_smallest_numbers():
    found = determinants.entropy(1e-39 * torch.eye(20).repeat(3, 1, 1), HOW)
    assert found.tolist() == [pytest.approx(math.log(20), abs=1e-4)] * 3


@emulated
def test_the_trial_passes_and_finds_a_wrong_answer(monkeypatch):
    monkeypatch.setattr(torch, "device", lambda *_: "cpu")
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(pieces, "side_stream", lambda _: None)
    assert determinants._trial_problem.__wrapped__(0, HOW) is None
    monkeypatch.setattr(determinants, "WEIGHTS", (*determinants.WEIGHTS[:-1], 0.5))
    determinants._table.cache_clear()
    assert "its error on a known answer" in str(determinants._trial_problem.__wrapped__(0, HOW))
    determinants._table.cache_clear()


@emulated
def test_matrices_that_begin_anywhere_in_memory():
    x = torch.randn(3, 20, 30, generator=torch.Generator().manual_seed(4))
    memory = torch.empty(1 + 3 * 400)
    given = memory[1:].view(3, 20, 20).copy_(x @ x.mT)
    assert torch.equal(
        determinants.entropy(given, HOW, overwrite=True), determinants.entropy(x @ x.mT, HOW)
    )


@emulated
def test_in_place_where_it_is_allowed():
    x = torch.randn(3, 20, 30, generator=torch.Generator().manual_seed(2))
    given = x @ x.mT
    assert torch.equal(
        determinants.entropy(given.clone(), HOW, overwrite=True), determinants.entropy(given, HOW)
    )
