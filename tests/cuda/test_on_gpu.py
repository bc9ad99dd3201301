"""What a GPU gives is what float64 on the CPU gives: entropies to 1e-4 nats, everything else to 1e-3. Skipped without a GPU."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from layerscope.metrics import Options, PooledRows, ViewRows, get_metric, metrics, token_kernels
from layerscope.metrics.tokens import find_sink, measure_tokens, token_entropy
from layerscope.spectra import cusolver, eigvalsh, solver_name, tridiagonal
from layerscope.spectra.chebyshev import entropy_bound

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
KINDS = ("random", "anisotropic", "sink", "decaying")


def states(kind: str, *shape: int, seed: int = 0) -> torch.Tensor:
    """States: plain; with a mean 50 times their spread; with one token 1000 times larger; with few directions."""
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=shape))
    if kind == "anisotropic":
        x += 50 * torch.from_numpy(np.random.default_rng(seed + 1).normal(size=shape[-1]))
    if kind == "sink":
        x[..., 0, :] *= 1000
    if kind == "decaying":
        x *= torch.arange(1, shape[-1] + 1) ** -1.0
    return x


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 17, 64, 127, 128, 250, 511, 512])
@pytest.mark.parametrize("solve", [tridiagonal.eigvalsh, cusolver.eigvalsh, eigvalsh])
def test_eigenvalues(solve, n):
    for kind in KINDS:
        z = states(kind, 50, n, 2 * n)
        gram = z @ z.mT
        known = np.linalg.eigvalsh(gram.numpy())
        for dtype in (torch.float32, torch.float64):
            if dtype == torch.float64 and solve is tridiagonal.eigvalsh:
                continue
            given = gram.to("cuda", dtype)
            before = given.clone()
            error = np.abs(solve(given).cpu().numpy() - known).max(-1) / np.abs(known).max(-1)
            assert error.max() < (1e-5 if dtype == torch.float32 else 1e-12), kind
            assert torch.equal(given, before)


def test_not_a_number_stays_one():
    bad = torch.eye(64, device="cuda").repeat(60, 1, 1)
    bad[3, 5, 5] = math.nan
    for solve in (tridiagonal.eigvalsh, eigvalsh):
        found = solve(bad)
        assert found[3].isnan().all()
        assert torch.isfinite(found[:3]).all()
    assert (tridiagonal.eigvalsh(torch.zeros(60, 9, 9, device="cuda")) == 0).all()


def test_the_solvers_are_named():
    assert "cusolverDnXsyevBatched" in solver_name("cuda")
    assert "tridiagonal" in solver_name("cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tokens", "width"), [(40, 64), (200, 256), (96, 48)])
def test_token_measures(tokens, width, kind, dtype):
    given = states(kind, 30, tokens, width).to(dtype)
    mask = torch.ones(30, tokens, dtype=torch.bool)
    mask[::3, tokens // 2 :] = False
    for padding in (None, mask):
        there = given.cuda(), None if padding is None else padding.cuda()
        want = measure_tokens(given, padding, find_sink(given, padding), Options())
        got = measure_tokens(*there, find_sink(*there), Options(), dtype=torch.float32)
        for sink in ("keep", "drop"):
            assert (got.entropy[sink].cpu() - want.entropy[sink]).abs().max() < 1e-4
            assert ((got.curvature[sink].cpu() - want.curvature[sink]) / want.curvature[sink]).abs().max() < 1e-3
        torch.testing.assert_close(find_sink(*there).ratio.cpu(), find_sink(given, padding).ratio, rtol=1e-5, atol=0)


@pytest.mark.parametrize("n", [60, 110, 300])
@pytest.mark.parametrize("kind", ["random", "anisotropic", "decaying"])
def test_metrics_of_pooled_vectors(kind, n):
    width, sites = 128, 4
    keys = np.arange(n, dtype=np.uint64)[::-1].copy()
    many: dict[str, list[tuple[PooledRows, ViewRows]]] = {"cpu": [], "cuda": []}
    for site in range(sites):
        base = states(kind, n, 1, width, seed=site)
        z = (base + 0.3 * states("random", n, 5, width, seed=90 + site)).float()
        for device, held in many.items():
            pooled, views = PooledRows(), ViewRows()
            pooled.update(z[:, 0].to(device), keys)
            views.update(z[:, 1:].to(device), keys)
            held.append((pooled, views))
    for name, kind_of in metrics().items():
        if kind_of.info.level == "tokens":
            continue
        metric = get_metric(name)(Options(permutations=4))
        level = int(kind_of.info.level == "views")
        metric.prepare([pair[level] for pair in many["cuda"]])
        for here, there in zip(many["cpu"], many["cuda"], strict=True):
            want, got = metric.estimate(here[level]), metric.estimate(there[level])
            close = 1e-4 if kind_of.info.unit == "nats" and name != "dime" else 1e-3 * abs(want.value)
            assert abs(got.value - want.value) <= close, (name, got.value, want.value)
            if want.se:
                assert got.se == pytest.approx(want.se, rel=0.1), name


@pytest.mark.parametrize("kind", KINDS)
def test_the_approximate_entropy_keeps_its_bound(kind):
    x = states(kind, 20, 512, 1024)
    x = x - x.mean(1, keepdim=True)
    x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    gram = x @ x.mT
    exact = token_entropy(gram.clone(), Options())
    got = token_entropy(gram.float().cuda(), Options(entropy="approximate")).cpu()
    assert ((got - exact).abs() <= entropy_bound(gram) + 1e-3).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("tokens", "width"), [(1, 4), (19, 36), (128, 1024)])
def test_own_kernels_for_tokens(tokens, width, dtype):
    given = states("random", 5, tokens, width).to("cuda", dtype)
    mask = torch.rand(5, tokens, device="cuda") < 0.7
    for padding in (None, mask):
        kept = given.double() if padding is None else given.double() * padding.unsqueeze(-1)
        got = token_kernels.token_sums(given, padding)
        torch.testing.assert_close(got, kept.sum(1), rtol=1e-6, atol=1e-5)
    gram = torch.randn(3, tokens, tokens, device="cuda")
    shift, scale = torch.randn(3, tokens, device="cuda"), torch.rand(3, tokens, device="cuda").round()
    want = (gram - shift.unsqueeze(-1) - shift.unsqueeze(-2)) * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    torch.testing.assert_close(token_kernels.recentred(gram, shift, scale), want)
