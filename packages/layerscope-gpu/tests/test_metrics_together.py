"""What is computed for many sites and folds together is what is computed one by one; here on the
CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.kernels import estimate_sites

from layerscope.metrics import Options, SiteVectors, estimate_vectors, get_metric, metrics
from layerscope_gpu.metrics import lidar, pooled, rounding
from layerscope_gpu.whitening import complements

WIDTH = 24
OF_VECTORS = [metric for metric in metrics().values() if metric.info.level != "tokens"]


def vectors(n: int, site: int, kind: str) -> torch.Tensor:
    rng = np.random.default_rng(site)
    scale = np.arange(1, WIDTH + 1) ** -2.0 if kind == "decaying" else 1.0
    base = rng.normal(size=(n, 1, WIDTH)) * scale
    if kind == "anisotropic":
        base = base + 50 * rng.normal(size=WIDTH)
    return torch.from_numpy((base + 0.2 * rng.normal(size=(n, 5, WIDTH))).astype(np.float32))


def sites(n: int, kind: str) -> list[SiteVectors]:
    every = [vectors(n, site, kind) for site in range(3)]
    return [SiteVectors(z[:, 0], z[:, 1:]) for z in every]


@pytest.mark.parametrize("group", [None, 8])
@pytest.mark.parametrize("kind", ["plain", "anisotropic", "decaying"])
@pytest.mark.parametrize("n", [2, 3, 19, 21, 24, 47])
def test_the_same_values_and_errors(n: int, kind: str, group: int | None) -> None:
    options = Options(permutations=3, group=group)
    alone, together = sites(n, kind), sites(n, kind)
    known = estimate_sites(OF_VECTORS, together, options)
    for metric in OF_VECTORS:
        name = metric.info.name
        for one, other, found in zip(alone, together, known, strict=True):
            want = estimate_vectors(metric, one, options)
            got = found.get(name) or estimate_vectors(metric, other, options)
            close = {"dime": 1e-3, "rankme": 1e-4}.get(name, 2e-5)
            assert got.value == pytest.approx(want.value, rel=close, abs=1e-6, nan_ok=True), name
            if want.se is not None:
                assert got.se == pytest.approx(want.se, rel=0.05, abs=1e-5, nan_ok=True), name
            counts = (want.n, want.d, want.undefined, want.df)
            assert (got.n, got.d, got.undefined, got.df) == counts


@pytest.mark.parametrize("quick", [False, True])
def test_what_is_costly_is_done_together(quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to the way of a CPU."""
    if quick:
        monkeypatch.setattr(rounding, "fast_doubles", lambda device: True)
        monkeypatch.setattr(lidar, "fast_doubles", lambda device: True)
    together = sites(70, "plain")
    wide = [SiteVectors(s.rows.repeat(1, 4), s.views.repeat(1, 1, 4)) for s in together]
    known = estimate_sites(OF_VECTORS, wide, Options(permutations=3))
    spectral = {metric.info.name for metric in OF_VECTORS if pooled.is_spectral(metric)}
    of_sums = {"dataset_entropy", "effective_rank", "entropy_rank"} if quick else set()
    for found, site in zip(known, wide, strict=True):
        assert set(found) == spectral - of_sums
        kept = {key[0] for key in site.shared}
        assert {"infonce", "lidar", "dime error"} <= kept
        assert ("sums" in kept) == quick


def test_lidar_through_inverse_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, together = sites(19, "plain"), sites(19, "plain")
    monkeypatch.setattr(lidar, "fast_doubles", lambda device: True)
    lidar.prepare(together, Options())()
    for one, other in zip(alone, together, strict=True):
        want, got = (estimate_vectors(get_metric("lidar"), s, Options()) for s in (one, other))
        assert (got.value, got.se) == pytest.approx((want.value, want.se), rel=1e-4)


def test_folds_that_float32_does_not_do_for_are_solved_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    z = np.random.default_rng(0).normal(size=(40, WIDTH)) * 10.0 ** -np.linspace(0, 4, WIDTH)
    metric, options = get_metric("alpha_req"), Options()
    site = SiteVectors(torch.from_numpy(z))
    want = estimate_vectors(metric, site, options).se
    rough = estimate_sites([metric], [site], options)[0]["alpha_req"].se
    assert rough == pytest.approx(want, rel=1e-3)
    monkeypatch.setattr(rounding, "SHARE_OF_ERROR", 0.0)
    again = estimate_sites([metric], [site], options)[0]["alpha_req"].se
    assert again == pytest.approx(want, rel=1e-9)
    assert rough != again


@pytest.mark.parametrize("n", [0, 1, 2, 5, 20, 21, 39, 40, 47])
def test_every_sample_is_in_one_fold(n: int) -> None:
    folds = pooled.fold_members(n)
    size = min(20, n) if n > 1 else 0
    assert sum(len(part) for part in folds) == size
    if folds:
        assert sorted(torch.cat([part.flatten() for part in folds]).tolist()) == list(range(n))
        for part in folds:
            assert (part % size == part[:, :1]).all()
            rest = complements(part, n)
            for inside, left in zip(part, rest, strict=True):
                assert sorted([*inside.tolist(), *left.tolist()]) == list(range(n))
