"""What a GPU gives is what float64 on the CPU gives: entropies to 1e-4 nats, everything else to
1e-3. Skipped without a GPU."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
import transformers

from layerscope.capture import make_batch
from layerscope.metrics import Options, SiteVectors, estimate_vectors, metrics
from layerscope.metrics.entropy import spectrum_entropy
from layerscope.metrics.spectral import fold_members
from layerscope.metrics.tokens import find_sink
from layerscope.models import modules
from layerscope.spectra import eigvalsh
from layerscope.spectra.resolvents import sums_without
from layerscope_gpu import exact_entropy, factors, precision
from layerscope_gpu.emulator import launch as emulate
from layerscope_gpu.emulator import missing as emulator_missing
from layerscope_gpu.metrics.sums import sums_without as sums_together
from layerscope_gpu.passes import norms as model_norms
from layerscope_gpu.passes import rotary
from layerscope_gpu.reducing import DeviceReduction
from layerscope_gpu.solvers import band, cusolver, small
from layerscope_gpu.token_measures import Request, prepare_rows, prepare_tokens, solve_tokens
from layerscope_gpu.tokens import normed, rows
from tests.capture.support import reduce_states
from tests.kernels import estimate_sites
from tests.metrics.support import measure_tokens

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
KINDS = ("random", "anisotropic", "sink", "decaying")


def states(kind: str, *shape: int, seed: int = 0) -> torch.Tensor:
    """States: plain; with a mean 50 times their spread; with one token 1000 times larger; with few
    directions."""
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=shape))
    if kind == "anisotropic":
        x += 50 * torch.from_numpy(np.random.default_rng(seed + 1).normal(size=shape[-1]))
    if kind == "sink":
        x[..., 0, :] *= 1000
    if kind == "decaying":
        x *= torch.arange(1, shape[-1] + 1) ** -1.0
    return x


def with_random_weights(norm: torch.nn.Module) -> torch.nn.Module:
    """A norm that scales and shifts: all ones would hide what it does first."""
    for parameter in norm.parameters():
        parameter.data.copy_(
            1 + 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
        )
    return norm


@cache
def solved(kind: str, n: int) -> tuple[torch.Tensor, np.ndarray]:
    """Some Gram matrices and their eigenvalues."""
    z = states(kind, 50 if n < 200 else 18, n, 2 * n)
    gram = z @ z.mT
    return gram, np.linalg.eigvalsh(gram.numpy())


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 17, 33, 64, 90, 127, 128, 150, 192, 250, 511, 512])
@pytest.mark.parametrize("solve", [small.eigvalsh, band.eigvalsh, cusolver.eigvalsh, eigvalsh])
def test_eigenvalues(solve, n):
    if solve is small.eigvalsh:
        if n > small.LARGEST:
            pytest.skip(f"takes up to {small.LARGEST} rows")
        assert small.usable(0, n) is None
    for kind in KINDS:
        gram, known = solved(kind, n)
        for dtype in (torch.float32, torch.float64):
            if dtype == torch.float64 and solve in (small.eigvalsh, band.eigvalsh):
                continue
            given = gram.to("cuda", dtype)
            before = given.clone()
            error = np.abs(solve(given).cpu().numpy() - known).max(-1) / np.abs(known).max(-1)
            assert error.max() < (1e-5 if dtype == torch.float32 else 1e-12), kind
            assert torch.equal(given, before)


@pytest.mark.parametrize("n", [193, 256, 257, 384, 385, 512, 640, 769, 950, 1001, 1024])
def test_two_stages_are_as_exact_as_one(n):
    assert band.usable(0, n) is None
    how = band.best_variant(n)
    z = states("decaying", 20, n, n)
    gram = z @ z.mT
    gram[1, :9], gram[1, :, :9] = 0, 0
    gram[2, n // 2 :], gram[2, :, n // 2 :] = 0, 0
    known = np.linalg.eigvalsh(gram.numpy())
    found = band.eigvalsh(gram.float().cuda(), variant=how)
    assert (np.abs(found.cpu().numpy() - known).max(-1) < 1e-6 * known.max(-1)).all()
    assert torch.equal(found, band.eigvalsh(gram.float().cuda(), variant=how))


@pytest.mark.parametrize("n", [193, 256, 300, 384, 512, 600, 1001, 1024])
def test_entropies_by_determinants_are_those_of_the_eigenvalues(n):
    for kind in KINDS:
        z = states(kind, 20, n, 2 * n)
        z[1, : n // 2] = 0
        gram = z @ z.mT
        known = spectrum_entropy(torch.linalg.eigvalsh(gram))
        found = exact_entropy(gram.float().cuda())
        assert found is not None
        torch.testing.assert_close(found.cpu(), known, atol=1e-4, rtol=0)
    assert exact_entropy(gram.cuda()) is None  # float64
    assert exact_entropy(gram[:4].float().cuda()) is None  # few


def test_not_a_number_stays_one():
    bad = torch.eye(64, device="cuda").repeat(60, 1, 1)
    bad[3, 5, 5] = math.nan
    for solve in (small.eigvalsh, band.eigvalsh, eigvalsh):
        found = solve(bad)
        assert found[3].isnan().all()
        assert torch.isfinite(found[:3]).all()
        assert (solve(torch.zeros(60, 9, 9, device="cuda")) == 0).all()


def test_kernels_agree_with_their_run_on_the_cpu():
    """The same source by g++ and by NVRTC: what differs is rounding (fused operations, fast
    reciprocals)."""
    if emulator_missing() is not None:
        pytest.skip(str(emulator_missing()))
    for n in (30, 60, 90, 127, 150):
        x = states("decaying", 3, n, n).float()
        gram, how = x @ x.mT, small.best_variant(n)
        here = torch.empty(3, n)
        emulate(how.source, "small_eigenvalues", 3, how.threads, 0, [gram, here, n, how.steps])
        assert (small.eigvalsh(gram.cuda()).cpu() - here).abs().max() < 1e-6 * here.max()


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
        got = prepare_tokens(*there, find_sink(*there).position, Request(Options()))
        entropy = solve_tokens([got], Options())[0]
        for sink in ("keep", "drop"):
            assert (entropy[sink].cpu() - want.entropy[sink]).abs().max() < 1e-4
            assert (
                (got.curvature[sink].cpu() - want.curvature[sink]) / want.curvature[sink]
            ).abs().max() < 1e-3
        torch.testing.assert_close(
            find_sink(*there).ratio.cpu(), find_sink(given, padding).ratio, rtol=1e-5, atol=0
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("tokens", "width", "narrow"),
    [(96, 48, True), (300, 132, True), (512, 384, False), (700, 256, True)],
)
def test_more_tokens_than_dimensions(tokens, width, narrow, kind, dtype, monkeypatch):
    """Through the reducer and the kernels of this way, products in float16 and TF32."""
    assert rows.usable(0)
    if narrow and not precision.wide_products(0):
        pytest.skip("this torch has no float32 products of float16 matrices")
    monkeypatch.setattr(precision, "wide_products", lambda _: narrow)
    used = []
    monkeypatch.setattr(
        "layerscope_gpu.token_measures.prepare_rows",
        lambda *given: used.append(1) or prepare_rows(*given),
    )
    given = states(kind, 10, tokens, width).to(dtype)
    short = [tokens, tokens // 2, tokens, tokens // 3, 1, 2, 3, width // 2, tokens, tokens]
    for lengths in ([tokens] * 10, short):
        batch = make_batch([[5] * n for n in lengths], 0)
        want = reduce_states(batch, [given])
        got = reduce_states(batch, [given.cuda()], kind=DeviceReduction)
        np.testing.assert_allclose(got.pooled, want.pooled, rtol=1e-4, atol=1e-5)
        # what TF32 rounds averages out over tokens: less so over a few
        close = np.where(np.array(lengths) < 50, 2e-4, 1e-4)
        for name, values in want.tokens.items():
            assert np.array_equal(np.isnan(got.tokens[name]), np.isnan(values)), name
            error = np.nan_to_num(np.abs(got.tokens[name] - values))
            assert (
                error <= (close if "entropy" in name else 1e-3 * np.nan_to_num(np.abs(values)))
            ).all(), name
    assert len(used) == 2


@pytest.mark.parametrize("n", [60, 110, 300])
@pytest.mark.parametrize("kind", ["random", "anisotropic", "decaying"])
def test_metrics_of_pooled_vectors(kind, n):
    width, sites = 128, 4
    keys = np.arange(n)[::-1].copy()
    many: dict[str, list[SiteVectors]] = {"cpu": [], "cuda": []}
    for site in range(sites):
        base = states(kind, n, 1, width, seed=site)
        z = (base + 0.3 * states("random", n, 5, width, seed=90 + site)).float()
        for device, held in many.items():
            there = z.to(device)
            held.append(SiteVectors.of(there[:, 0], there[:, 1:], keys))
    of_vectors = [metric for metric in metrics().values() if metric.info.level != "tokens"]
    options = Options(permutations=4)
    known = estimate_sites(of_vectors, many["cuda"], options)
    for metric in of_vectors:
        name = metric.info.name
        for here, there, found in zip(many["cpu"], many["cuda"], known, strict=True):
            want = estimate_vectors(metric, here, options)
            got = found.get(name) or estimate_vectors(metric, there, options)
            close = (
                1e-4 if metric.info.unit == "nats" and name != "dime" else 1e-3 * abs(want.value)
            )
            assert abs(got.value - want.value) <= close, (name, got.value, want.value)
            if want.se:
                assert got.se == pytest.approx(want.se, rel=0.1), name


@pytest.mark.parametrize("n", [5, 64, 200, 1000])
def test_inverse_factors(n):
    base = states("decaying", 6, n, n + 8).cuda()
    matrices = base @ base.mT + 1e-9 * torch.eye(n, dtype=torch.float64, device="cuda")
    assert factors.usable(0)
    found = factors.inverse_factor(matrices.clone())
    error = (
        (found @ matrices @ found.mT - torch.eye(n, dtype=torch.float64, device="cuda")).abs().max()
    )
    assert error < 1e-6
    torch.testing.assert_close(
        factors.log_determinant(found), torch.logdet(matrices), rtol=1e-8, atol=1e-6
    )


@pytest.mark.parametrize("kind", ["random", "anisotropic", "decaying"])
def test_sums_without_folds(kind):
    z = states(kind, 3, 220, 256)
    z = z - z.mean(1, keepdim=True)
    z = z / torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    grams, members = z @ z.mT, fold_members(220, torch.device("cpu"))
    want, got = (
        sums_without(grams, members),
        sums_together(grams.cuda(), [some.cuda() for some in members]),
    )
    for one, other in zip(want, got, strict=True):
        torch.testing.assert_close(other.cpu(), one, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", [torch.nn.LayerNorm, torch.nn.RMSNorm])
@pytest.mark.parametrize(("tokens", "width"), [(1, 64), (33, 1024), (130, 4096)])
def test_means_of_normed_states(tokens, width, norm, dtype):
    module = with_random_weights(norm(width, eps=1e-5)).to("cuda", dtype)
    given = (3 * states("random", 5, tokens, width) + 1).to("cuda", dtype)
    mask = torch.rand(5, tokens, device="cuda") < 0.7
    mask[:, 0] = True
    with torch.inference_mode():
        for padding in (None, mask):
            kept = (
                module(given)
                if padding is None
                else torch.where(padding.unsqueeze(-1), module(given), 0)
            )
            got = normed.normed_means(given, padding, module)
            assert got is not None
            want = kept.sum(1, dtype=torch.float64) / (
                tokens if padding is None else padding.sum(-1, keepdim=True)
            )
            assert (got - want).abs().mean() < 0.1 * torch.finfo(
                dtype
            ).eps * want.abs().mean() + 1e-12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", [torch.nn.LayerNorm, None])
@pytest.mark.parametrize(("tokens", "width"), [(1, 64), (33, 1024), (200, 4096)])
def test_states_seen_from_their_mean(tokens, width, norm, dtype):
    module = None if norm is None else with_random_weights(norm(width, eps=1e-5)).to("cuda", dtype)
    given = (states("sink", 5, tokens, width) + 1).to(dtype)
    mask = torch.ones(5, tokens, dtype=torch.bool)
    mask[1, tokens // 2 + 1 :] = False
    with torch.inference_mode():
        for padding in (None, mask):
            real = torch.ones_like(mask) if padding is None else padding
            got = normed.centered_states(
                given.cuda(), None if padding is None else padding.cuda(), module
            )
            assert got is not None
            after = given.cuda() if module is None else module(given.cuda())
            after = torch.where(real.unsqueeze(-1), after.cpu().double(), 0.0)
            largest = find_sink(given, padding).position
            mean = (after.sum(1) - after[torch.arange(5), largest]) / (
                real.sum(-1, keepdim=True) - 1
            ).clamp(min=1)
            want = torch.where(real.unsqueeze(-1), after - mean.unsqueeze(1), 0.0)
            assert got.largest.tolist() == largest.tolist()
            assert (got.centered.cpu() - want).abs().mean() <= 1e-4 * want.abs().mean() + 1e-6
            assert (got.total.cpu() - after.sum(1)).abs().mean() <= 1e-4 * after.sum(
                1
            ).abs().mean() + 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [4, 64, 512, 768, 1024, 1280, 2048, 2560, 4096])
def test_norms_have_the_bits_of_torch(width, dtype):
    assert model_norms._is_same(width, dtype, torch.device("cuda", 0))
    generator = torch.Generator("cuda").manual_seed(width)
    x = (3 * torch.randn(1000, width, device="cuda", generator=generator) + 1).to(dtype)
    norm = with_random_weights(torch.nn.LayerNorm(width)).to("cuda", dtype)
    assert torch.equal(model_norms.layer_norm(x, norm.weight, norm.bias, norm.eps), norm(x))


@pytest.mark.parametrize("family", ["GPTNeoX", "Llama"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_pass_has_the_bits_of_the_models_own(family, dtype, monkeypatch):
    sizes = {
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "intermediate_size": 512,
        "vocab_size": 90,
    }
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**sizes)
    module = getattr(transformers, f"{family}Model")(config).to("cuda", dtype).eval()
    ids = torch.randint(0, 90, (5, 33), device="cuda")
    mask = torch.ones_like(ids)
    mask[2, 20:] = 0
    used = []
    for name, room in (("rotate", rotary), ("layer_norm", model_norms)):
        kernel = getattr(room, name)
        monkeypatch.setattr(
            room, name, lambda *given, kernel=kernel, name=name: used.append(name) or kernel(*given)
        )
    for given in (None, mask):
        with torch.inference_mode():
            want = module(input_ids=ids, attention_mask=given, use_cache=False).last_hidden_state
        assert torch.equal(modules.run(module, ids, given).last_hidden_state, want)
    assert set(used) == ({"rotate", "layer_norm"} if family == "GPTNeoX" else {"rotate"})
