"""Our CUDA kernel that sums over tokens, run on the CPU: numpy's answer in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from layerscope_gpu.emulator import launch, missing
from layerscope_gpu.tokens import sums

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setattr(sums, "launch", launch)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("tokens", "width"), [(1, 4), (16, 8), (19, 36), (50, 132), (3, 1100), (128, 12), (300, 20)]
)
def test_sums_over_tokens(tokens, width, dtype):
    states = torch.from_numpy(np.random.default_rng(0).normal(size=(3, tokens, width))).to(dtype)
    mask = torch.arange(tokens) < torch.tensor([[tokens], [1], [0]])
    for padding in (None, mask):
        kept = states.double() if padding is None else states.double() * padding.unsqueeze(-1)
        np.testing.assert_allclose(
            sums._token_sums(states, padding), kept.sum(1), rtol=1e-6, atol=1e-5
        )


def test_half_precision_of_every_size():
    states = (
        torch.tensor([6e-8, 6.1e-5, -1.0, 65504.0, float("inf"), float("nan"), 0.0, -0.3])
        .to(torch.float16)
        .view(1, 2, 4)
    )
    np.testing.assert_allclose(sums._token_sums(states, None), states.double().sum(1), rtol=1e-7)
