"""eigvalsh: numpy's answer for any batch shape, and no trace left in the caller's threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from layerscope.spectra import eigvalsh, map_concurrently


@pytest.fixture(autouse=True, params=[1, 2], ids=["one thread", "two threads"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def symmetric(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    a = torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).to(dtype)
    return a + a.mT


def assert_numpy(matrices: torch.Tensor, solved: torch.Tensor) -> None:
    assert solved.shape == matrices.shape[:-1]
    assert solved.dtype == matrices.dtype
    tolerance = 1e-12 if matrices.dtype == torch.float64 else 1e-4
    np.testing.assert_allclose(
        solved.numpy(), np.linalg.eigvalsh(matrices.double().numpy()), atol=tolerance
    )


@pytest.mark.parametrize("batch", [(), (1,), (2,), (7,), (2, 3), (1, 5), (2, 1, 3)])
@pytest.mark.parametrize("n", [1, 2, 17])
def test_against_numpy(batch, n):
    matrices = symmetric(*batch, n, n)
    assert_numpy(matrices, eigvalsh(matrices))


@pytest.mark.parametrize("shape", [(0, 5, 5), (3, 0, 5, 5), (0, 0), (4, 0, 0)])
def test_of_nothing(shape):
    assert eigvalsh(torch.zeros(shape)).shape == shape[:-1]


def test_ascending_and_unchanged_input():
    matrices = symmetric(5, 9, 9)
    before = matrices.clone()
    solved = eigvalsh(matrices)
    assert (solved.diff(dim=-1) >= 0).all()
    assert torch.equal(matrices, before)


def test_leaves_the_callers_threads_alone(threads):
    eigvalsh(symmetric(6, 12, 12))
    assert torch.get_num_threads() == threads
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(eigvalsh, symmetric(6, 12, 12)).result().shape == (6, 12)
    assert torch.get_num_threads() == threads


def test_inside_inference_mode():
    with torch.inference_mode():
        matrices = symmetric(4, 8, 8)
        solved = eigvalsh(matrices)
        assert_numpy(matrices, solved)
        assert (solved * 2).shape == (4, 8)
    with torch.no_grad():
        assert_numpy(matrices, eigvalsh(matrices.clone()))


def test_large_matrices_are_not_split(monkeypatch):
    monkeypatch.setattr("layerscope.spectra._LARGEST_SPLIT", 4)
    monkeypatch.setattr("layerscope.spectra.map_concurrently", None)  # calling it would fail
    matrices = symmetric(3, 5, 5)
    assert_numpy(matrices, eigvalsh(matrices))


def test_side_by_side_keeps_the_order_and_gives_each_worker_one_thread(threads):
    seen = list(map_concurrently("test", lambda i: (i, torch.get_num_threads()), range(20)))
    assert seen == [(i, 1) for i in range(20)]
    assert torch.get_num_threads() == threads


def test_work_inside_work_does_not_wait_for_itself():
    """Workers of one purpose may solve batches, which are another purpose."""
    batches = [symmetric(4, 6, 6, seed=i) for i in range(8)]
    for matrices, solved in zip(batches, map_concurrently("test", eigvalsh, batches), strict=True):
        assert_numpy(matrices, solved)
