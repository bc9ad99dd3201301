"""The kernels of the approximate entropy, run on the CPU: they do what torch's operators in their
place do."""

from __future__ import annotations

import pytest
import torch

from layerscope_gpu import chebyshev as kernels
from layerscope_gpu import entropy
from layerscope_gpu.emulator import launch, missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    monkeypatch.setattr(kernels, "launch", launch)


def matrices(count: int, n: int) -> torch.Tensor:
    x = torch.randn(count, n, 2 * n, generator=torch.Generator().manual_seed(n))
    return x @ x.mT / (2 * n)


@pytest.mark.parametrize(("n", "m"), [(1, 8), (8, 8), (13, 16), (64, 64), (100, 104), (136, 136)])
def test_each_kernel_is_its_operator(n, m):
    given, by = matrices(3, n), torch.tensor([0.5, 0.25, 3.0], dtype=torch.float64)
    arrays = torch.full((6, 3, m, m), torch.nan, dtype=torch.float16)
    known = arrays.clone()
    for k in range(6):
        kernels._narrow(given, by / (k + 1), arrays[k])
        entropy.narrow(given, by / (k + 1), known[k])
    assert torch.equal(arrays, known)
    for some in (arrays, arrays[2:3]):
        torch.testing.assert_close(
            kernels._pair_sums(some), entropy.pair_sums(some), rtol=1e-5, atol=1e-5
        )
    kernels._rescale(arrays[0], arrays[1], arrays[4], -by, by.square())
    entropy.rescale(known[0], known[1], known[4], -by, by.square())
    assert torch.equal(arrays[0], known[0])
    assert torch.equal(arrays[1], arrays[4])
    torch.testing.assert_close(arrays[1], known[1], rtol=2e-3, atol=1e-6)  # one rounding or two
    assert torch.equal(arrays[2:4], known[2:4])


@pytest.mark.parametrize("n", [48, 45])
def test_entropies_through_the_kernels(monkeypatch, n):
    given = matrices(3, n)
    given[1] = 0
    given[2, 4, 2] = given[2, 2, 4] = torch.nan
    plain = entropy.approximate_entropy(given, half=True)
    used: list[bool] = []
    monkeypatch.setattr(
        kernels, "_ours", lambda matrices: used.append(True) or matrices.dtype == torch.float16
    )
    found = entropy.approximate_entropy(given, half=True)
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-5, equal_nan=True)
    assert found.isnan().tolist() == [False, True, True]
    assert used
