"""The operators that stand in for the kernels where there is no GPU: the formulas, written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from layerscope.metrics.token_kernels import recentred, token_sums
from layerscope.metrics.token_norms import token_sum


@pytest.mark.parametrize("given", [False, True])
def test_recentred_is_the_formula(given: bool) -> None:
    rng = np.random.default_rng(0)
    gram, shift, scale = rng.normal(size=(3, 5, 5)), rng.normal(size=(3, 5)), rng.normal(size=(3, 5))
    scale[1, 2] = 0.0
    want = (gram - shift[:, :, None] - shift[:, None, :]) * scale[:, :, None] * scale[:, None, :]
    out = torch.full((3, 5, 5), torch.nan, dtype=torch.float64) if given else None
    got = recentred(torch.from_numpy(gram), torch.from_numpy(shift), torch.from_numpy(scale), out)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-14)
    assert out is None or got is out
    plain = recentred(torch.from_numpy(gram), None, torch.from_numpy(scale))
    np.testing.assert_allclose(plain.numpy(), gram * scale[:, :, None] * scale[:, None, :], rtol=1e-14)


def test_sums_leave_padding_out() -> None:
    states = torch.randn(4, 7, 6, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(7) < torch.tensor([7, 3, 1, 5]).unsqueeze(-1)
    states[~mask] = torch.nan
    got = token_sum(states, mask)
    want = np.array([states[i, : int(n)].double().numpy().sum(0) for i, n in enumerate(mask.sum(-1))])
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-14)
    assert token_sums(states, mask) is None  # no GPU, no kernel
