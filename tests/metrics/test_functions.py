"""The functions that metrics are made of, against the reference and where the answer is known:
spectra and entropies under every order, blocks and batches, LiDAR of extreme states, DiME's
permutations, normalizations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from layerscope.metrics import ROW_PREPARATIONS, Options, get_metric, interval, matrix_entropy
from layerscope.metrics.dime import dime_terms
from layerscope.metrics.geometry import info_nce, neighbor_ratios
from layerscope.metrics.vectors import prepare_rows
from tests.metrics import reference as ref
from tests.metrics.harness import axes
from tests.metrics.support import (
    Samples,
    compute,
    make_samples,
    of_samples,
    tensor,
)

ALPHAS = (0.0, 0.1, 0.5, 1 - 1e-7, 1.0, 1 + 1e-7, 1.5, 2.0, 5.0, 200.0, math.inf)
SHAPES = {"N<D": (9, 24), "N>D": (24, 9), "N=D": (12, 12)}
close = pytest.approx


def matrix(shape: str, kind: str = "plain", seed: int = 0) -> np.ndarray:
    n, d = SHAPES[shape]
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, d))
    if kind == "anisotropic":
        z += 30 * rng.normal(size=d)
    if kind == "sink":
        z[0] *= 200
    return z


@pytest.mark.parametrize("kind", ["plain", "anisotropic", "sink"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", ROW_PREPARATIONS)
def test_matrix_entropy(shape, kind, rows):
    z = matrix(shape, kind)
    np.testing.assert_allclose(
        prepare_rows(tensor(z), rows), ref.prepare(z, rows), atol=1e-12 * np.abs(z).max()
    )
    for alpha in ALPHAS:
        # near α = 1 the reference itself loses digits: it divides a rounded logarithm by 1 − α
        tolerance = 1e-9 if abs(alpha - 1) > 1e-6 or alpha == 1 else 2e-8
        assert matrix_entropy(tensor(z), alpha, rows).item() == close(
            ref.dataset_entropy(z, alpha, rows), abs=tolerance
        ), alpha


def test_ranks_of_a_matrix_that_is_not_full_rank():
    """Rounding of the Gram matrix, 1e-16 of the largest eigenvalue, would be 1e-8 of the largest
    singular value."""
    rng = np.random.default_rng(1)
    z = rng.normal(size=(300, 3)) @ rng.normal(size=(3, 200))
    s = Samples([], z, z[:, None])
    assert of_samples("effective_rank", s, options=Options(pooled_rows="raw")).value == close(
        ref.effective_rank(z, "raw"), rel=1e-9
    )
    assert of_samples("rankme", s).value == close(ref.rankme(z), rel=1e-9)
    for alpha in (0.0, 0.05, 0.3):
        assert matrix_entropy(tensor(z), alpha).item() == close(
            ref.matrix_entropy(z, alpha), abs=1e-9
        )


def test_infonce_in_blocks(monkeypatch):
    s = make_samples(14, 6)
    a, b = (prepare_rows(tensor(s.views[:, i]), "unit") for i in (0, 1))
    whole = [info_nce(a, b, 0.1, one_way) for one_way in (False, True)]
    monkeypatch.setattr("layerscope.metrics.geometry.BLOCK", 5)
    for (losses, negatives), one_way in zip(whole, (False, True), strict=True):
        blocked = info_nce(a, b, 0.1, one_way)
        torch.testing.assert_close(blocked[0], losses, rtol=0, atol=1e-12)
        torch.testing.assert_close(blocked[1], negatives, rtol=0, atol=1e-12)


def test_neighbors_far_from_the_origin_and_in_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(40, 5)) + 1e4
    expected = ref.intrinsic_dimension(z)
    for block in (1024, 7):
        monkeypatch.setattr("layerscope.metrics.geometry.BLOCK", block)
        logs = neighbor_ratios(tensor(z)).log()
        assert 39 / logs.sum().item() == close(expected, rel=1e-9)


def test_dime_of_more_prompts_than_its_limit():
    """The first prompts in canonical order, which is the order of the keys, not of arrival."""
    s = make_samples(20, 6)
    first = np.argsort(s.keys)[:8]
    a, b = (ref.prepare(s.views[first, i], "unit") for i in (0, 1))
    estimate = of_samples("dime", s, options=Options(dime_samples=8))
    terms = ref.dime_terms(a, b, ref.permutations(8, 10, 0))
    assert estimate.n == 8
    assert estimate.value == close(np.mean(terms), abs=1e-9)
    low, high = interval(estimate)
    assert (high - low) / 2 == close(2.3646 * estimate.se, rel=1e-4)  # seven degrees of freedom


def test_normalizations():
    s = make_samples(20, 6)
    log_n, log_d = math.log(20), math.log(6)
    divide = {
        "raw": 1.0,
        "maxEntropy": log_d,
        "logN": log_n,
        "logD": log_d,
        "logNlogD": log_n * log_d,
    }
    for name in ("dataset_entropy", "lidar", "dime"):
        assert set(get_metric(name).info.normalizations) == set(divide)
        raw = of_samples(name, s)
        for normalization, by in divide.items():
            scaled = of_samples(name, s, normalization=normalization)
            assert scaled.value == close(raw.value / by, rel=1e-12)
            width = np.subtract(*interval(scaled)) * by
            assert width == close(np.subtract(*interval(raw)), rel=1e-9)


def test_prompt_entropy_is_normalized_by_each_prompts_own_length():
    s = make_samples(20, 6)
    for normalization in ("logN", "maxEntropy", "logD", "logNlogD"):
        values = []
        for t in s.tokens:
            log_n, log_d = math.log(len(t)), math.log(6)
            by = {
                "logN": log_n,
                "maxEntropy": min(log_n, log_d),
                "logD": log_d,
                "logNlogD": log_n * log_d,
            }[normalization]
            values.append(ref.prompt_entropy(t) / by)
        assert of_samples("prompt_entropy", s, normalization=normalization).value == close(
            np.mean(values), rel=1e-9
        )


def value(name: str, data, options: Options | None = None) -> float:
    return compute(name, tensor(data), options).value


def test_two_eigenvalues():
    """K = diag(3, 1): p = (3/4, 1/4)."""
    z = torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64).sqrt())
    assert matrix_entropy(z, 1.0).item() == close(
        -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)), abs=1e-12
    )
    assert matrix_entropy(z, 2.0).item() == close(-math.log(10 / 16), abs=1e-12)
    assert matrix_entropy(z, math.inf).item() == close(-math.log(0.75), abs=1e-12)
    assert matrix_entropy(z, 0.0).item() == close(math.log(2), abs=1e-12)


def test_lidar_sees_past_a_noisy_direction():
    """Whitening: a direction where views differ as much as prompts no longer counts like the
    others."""
    rng = np.random.default_rng(0)
    centers = np.tile(axes(3), (4, 1))
    quiet = centers[:, None] + 0.01 * rng.normal(size=(24, 6, 3))
    noisy = quiet.copy()
    noisy[..., 2] += 5 * rng.normal(size=(24, 6))
    assert value("lidar_rank", quiet) == close(3, abs=0.05)
    assert value("lidar_rank", noisy) == close(2, abs=0.1)


def test_dime_of_two_clusters():
    """Shuffled, the product of two block matrices keeps its blocks only if the permutation does:
    log 4 − log 2 or 0."""
    a = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]], dtype=torch.float64)
    seen = set()
    for term, perm in zip(
        dime_terms(a, a, Options(permutations=30)), ref.permutations(4, 30, 0), strict=True
    ):
        kept = {perm[0], perm[1]} in ({0, 1}, {2, 3})
        assert term == close(0.0 if kept else math.log(2), abs=1e-9)
        seen.add(kept)
    assert seen == {True, False}


def _exact_lidar(views: np.ndarray, delta: float) -> float:
    """LiDAR with sixty digits."""
    mp = pytest.importorskip("mpmath")
    n, q, d = views.shape
    with mp.workdps(60):
        rows = [[[mp.mpf(float(x)) for x in view] for view in prompt] for prompt in views]
        centers = [[mp.fsum(view[k] for view in prompt) / q for k in range(d)] for prompt in rows]
        mean = [mp.fsum(center[k] for center in centers) / n for k in range(d)]
        within, between = mp.matrix(d, d), mp.matrix(d, d)
        for i in range(d):
            for j in range(d):
                inner = (
                    (view[i] - c[i]) * (view[j] - c[j])
                    for prompt, c in zip(rows, centers, strict=True)
                    for view in prompt
                )
                within[i, j] = mp.fsum(inner) / (n * q) + (mp.mpf(delta) if i == j else 0)
                between[i, j] = mp.fsum((c[i] - mean[i]) * (c[j] - mean[j]) for c in centers) / n
        inverse = mp.inverse(mp.cholesky(within))
        values = [
            max(mp.mpf(0), value)
            for value in mp.eigsy(inverse * between * inverse.T, eigvals_only=True)
        ]
        total = mp.fsum(values)
        return float(
            -mp.fsum(v / total * mp.log(v / total) for v in values if v > total * mp.mpf(10) ** -40)
        )


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e5, 1e6, 1e8, 1e10])
@pytest.mark.parametrize(("n", "q", "d"), [(5, 2, 8), (12, 2, 6), (4, 2, 12)])
def test_lidar_of_large_states(n: int, q: int, d: int, scale: float) -> None:
    """δ is far below the rounding of Σ_w there, and still decides the directions in which views do
    not differ."""
    views = scale * np.random.default_rng(n).normal(size=(n, q, d))
    result = compute("lidar", torch.from_numpy(views))
    assert result.value == close(_exact_lidar(views, 1e-4), abs=2e-5)
    assert result.undefined == 0
    assert math.isfinite(result.se)


def test_lidar_of_states_beyond_all_measure_is_undefined() -> None:
    views = 1e30 * np.random.default_rng(0).normal(size=(5, 2, 8))
    result = compute("lidar", torch.from_numpy(views))
    assert math.isnan(result.value)
    assert result.undefined == 5
