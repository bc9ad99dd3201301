"""The approximate entropy: near the exact one, within its bound, and blind to rows of zeros."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from layerscope.metrics import Options
from layerscope.metrics.entropy import gram_entropy
from layerscope.metrics.tokens import find_sink, measure_tokens
from layerscope.spectra import chebyshev


def grams(kind: str, n: int = 96, width: int = 160) -> torch.Tensor:
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(4, n, width)))
    if kind == "anisotropic":
        x = x + 5
    if kind == "sink":
        x[:, 0] *= 1000
    if kind == "decaying":
        x = x * torch.arange(1, width + 1) ** -1.0
    if kind != "anisotropic":
        x = x - x.mean(1, keepdim=True)
    x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x @ x.mT


def test_the_expansion_is_that_of_t_log_t():
    angles = (np.arange(4096) + 0.5) * np.pi / 4096
    t = (1 + np.cos(angles)) / 2
    c = chebyshev.coefficients(40)
    series = sum(ck * np.cos(k * angles) for k, ck in enumerate(c))
    assert np.abs(series - t * np.log(t)).max() <= chebyshev.tail(40) * 1.001
    assert chebyshev.tail(40) == pytest.approx(sum(1 / (k * (k * k - 1)) for k in range(41, 100_000)), rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["plain", "anisotropic", "sink", "decaying"])
def test_within_its_bound(kind, dtype):
    gram = grams(kind)
    error = (chebyshev.approximate_entropy(gram.to(dtype)) - gram_entropy(gram)).abs()
    assert (error <= chebyshev.entropy_bound(gram) + 1e-5).all()
    if kind == "plain":
        assert error.max() < 3e-4


def test_scale_rows_of_zeros_and_chunks_do_not_matter(monkeypatch):
    gram = grams("plain")
    plain = chebyshev.approximate_entropy(gram)
    padded = torch.zeros(4, 120, 120, dtype=torch.float64)
    padded[:, 5:101, 5:101] = 7 * gram
    torch.testing.assert_close(chebyshev.approximate_entropy(padded), plain, rtol=0, atol=1e-9)
    monkeypatch.setattr(chebyshev, "_CHUNK_BYTES", 1)
    torch.testing.assert_close(chebyshev.approximate_entropy(gram), plain, rtol=0, atol=1e-12)


def test_nothing_has_no_entropy():
    assert chebyshev.approximate_entropy(torch.zeros(2, 300, 300)).isnan().all()


def test_long_prompts_only(monkeypatch):
    monkeypatch.setattr("layerscope.metrics.tokens._FEWEST_APPROXIMATED", 60)
    rng = np.random.default_rng(0)
    for tokens, exact in ((50, True), (70, False), (200, False)):  # 200 tokens in 120 dimensions: the other side
        states = torch.from_numpy(rng.normal(size=(2, tokens, 120))).float()
        want = measure_tokens(states, None, find_sink(states), Options())
        got = measure_tokens(states, None, find_sink(states), Options(entropy="approximate"))
        for sink in ("keep", "drop"):
            assert torch.equal(got.entropy[sink], want.entropy[sink]) == exact
            torch.testing.assert_close(got.entropy[sink], want.entropy[sink], rtol=0, atol=1e-3)
        assert math.isclose(got.curvature["keep"][0], want.curvature["keep"][0])
