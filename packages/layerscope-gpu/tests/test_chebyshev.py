"""Passes over float16 matrices, run on the CPU: a kernel that does not do what it should is not
used.

layerscope's own tests compare each of them with torch's operators.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from layerscope_gpu import chebyshev
from layerscope_gpu.emulator import launch, missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def test_the_first_check_passes(monkeypatch):
    monkeypatch.setattr(chebyshev, "launch", launch)
    assert chebyshev.right(torch.device("cpu"))


@pytest.mark.parametrize("name", ["narrow", "rescale", "sums_of_1", "sums_of_6"])
def test_the_first_check_finds_a_kernel_that_does_nothing(monkeypatch, name):
    def skipping(source: str, which: str, *rest: object) -> None:
        if which != name:
            launch(source, which, *rest)  # type: ignore[arg-type]
        elif which.startswith(
            "sums"
        ):  # their memory is new, and may hold the answer of the test before
            rest[-1][1].fill_(torch.nan)  # type: ignore[index]

    monkeypatch.setattr(chebyshev, "launch", skipping)
    assert not chebyshev.right(torch.device("cpu"))


def test_what_does_not_fit_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr(Tensor, "is_cuda", True)
    monkeypatch.setattr(chebyshev, "usable", lambda index: True)
    by = torch.ones(1)
    for size, dtype in ((12, torch.float16), (8, torch.float32)):
        arrays = torch.full((1, 1, size, size), 3.0, dtype=dtype)
        assert not chebyshev.narrow(torch.zeros(1, size, size), by, arrays[0])
        assert not chebyshev.rescale(arrays[0], arrays[0], arrays[0], by, by)
        assert chebyshev.pair_sums(arrays) is None
        assert (arrays == 3).all()
    assert (
        chebyshev.pair_sums(torch.zeros(3, 1, 8, 8, dtype=torch.float16)) is None
    )  # neither 1 nor 6
