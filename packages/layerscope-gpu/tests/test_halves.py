"""Products in parts: the same as whole ones, on the CPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope_gpu import halves


@pytest.fixture(autouse=True)
def in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "_TILE", 4)
    monkeypatch.setattr(halves, "_pays", lambda matrices, d: True)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


@settings(max_examples=60, deadline=None)
@given(sets=st.integers(1, 3), n=st.integers(1, 9), d=st.integers(1, 45))
def test_symmetric_products(sets: int, n: int, d: int) -> None:
    rows = random(2, sets, n, d)
    want = rows.mT @ rows
    torch.testing.assert_close(halves.symmetric_product(rows), want)
    torch.testing.assert_close(halves.symmetric_product(rows, lower=True).tril(), want.tril())


@settings(max_examples=60, deadline=None)
@given(sets=st.integers(1, 3), n=st.integers(1, 9), d=st.integers(1, 45))
def test_products_with_triangular_factors(sets: int, n: int, d: int) -> None:
    factors, others = random(2, sets, d, d).tril(), random(2, sets, n, d).mT
    torch.testing.assert_close(halves.lower_product(factors, others), factors @ others)


def test_numbers_above_the_diagonal_are_not_multiplied() -> None:
    factors = random(1, 40, 40).tril()
    factors[:, :8, 24:] = torch.nan
    assert halves.lower_product(factors, random(1, 40, 3)).isfinite().all()


@pytest.mark.parametrize(("d", "parts"), [(3, 1), (16, 4), (17, 3), (1024, 4)])
def test_parts_cover_a_side_in_whole_tiles(d: int, parts: int) -> None:
    cuts = halves._parts(d)
    assert [start for start, _ in cuts] == [0, *(stop for _, stop in cuts[:-1])]
    assert cuts[-1][1] == d
    assert all(start % 4 == 0 for start, _ in cuts)
    assert len(cuts) == parts
