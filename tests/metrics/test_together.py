"""What is computed for many sites and folds together, as on a GPU, is what is computed one by
one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import layerscope_gpu
from layerscope.metrics import Options, PooledRows, ViewRows, get_metric, metrics
from layerscope.metrics.folds import fold_members
from layerscope.metrics.samples import _Vectors, n_folds

WIDTH = 24
GPU = SimpleNamespace(
    on=lambda device: layerscope_gpu
)  # its ways that are torch's own operators, on the CPU
DATASET = [name for name, metric in metrics().items() if metric.info.level != "tokens"]


def vectors(n: int, site: int, kind: str) -> np.ndarray:
    rng = np.random.default_rng(site)
    base = rng.normal(size=(n, 1, WIDTH)) * (
        np.arange(1, WIDTH + 1) ** -2.0 if kind == "decaying" else 1.0
    )
    if kind == "anisotropic":
        base = base + 50 * rng.normal(size=WIDTH)
    return (base + 0.2 * rng.normal(size=(n, 5, WIDTH))).astype(np.float32)


def sites(n: int, kind: str) -> list[tuple[PooledRows, ViewRows]]:
    out = []
    for site in range(3):
        z, pooled, views = vectors(n, site, kind), PooledRows(), ViewRows()
        pooled.update(z[:, 0])
        views.update(z[:, 1:])
        out.append((pooled, views))
    return out


@pytest.mark.parametrize("kind", ["plain", "anisotropic", "decaying"])
@pytest.mark.parametrize("n", [2, 3, 19, 21, 24, 47])
def test_the_same_values_and_errors(n, kind, monkeypatch):
    alone, together = sites(n, kind), sites(n, kind)
    for name in DATASET:
        metric = get_metric(name)(Options(permutations=3))
        level = int(metric.info.level == "views")
        want = [metric.estimate(pair[level]) for pair in alone]
        with monkeypatch.context() as patch:
            patch.setattr(_Vectors, "on_gpu", property(lambda self: True))
            patch.setattr("layerscope.metrics.lidar.faster", GPU)
            finish = metric.prepare([pair[level] for pair in together])
            if finish is not None:
                finish()
            got = [metric.estimate(pair[level]) for pair in together]
        for one, other in zip(want, got, strict=True):
            assert other.value == pytest.approx(
                one.value, rel={"dime": 1e-3, "rankme": 1e-4}.get(name, 2e-5), abs=1e-6, nan_ok=True
            ), name
            if one.se is not None:
                assert other.se == pytest.approx(one.se, rel=0.05, abs=1e-5, nan_ok=True), name
            assert (other.n, other.d, other.undefined, other.df) == (
                one.n,
                one.d,
                one.undefined,
                one.df,
            )


def test_lidar_through_inverse_factors(monkeypatch):
    alone, together = sites(19, "plain"), sites(19, "plain")
    metric = get_metric("lidar")()
    want = [metric.estimate(pair[1]) for pair in alone]
    monkeypatch.setattr(_Vectors, "on_gpu", property(lambda self: True))
    monkeypatch.setattr("layerscope.metrics.lidar.faster", GPU)
    monkeypatch.setattr("layerscope.metrics.lidar.fast_doubles", lambda device: True)
    metric.prepare([pair[1] for pair in together])()
    for one, pair in zip(want, together, strict=True):
        got = metric.estimate(pair[1])
        assert (got.value, got.se) == pytest.approx((one.value, one.se), rel=1e-4)


def test_folds_that_float32_does_not_do_for_are_solved_again(monkeypatch):
    z = np.random.default_rng(0).normal(size=(40, WIDTH)) * 10.0 ** -np.linspace(0, 4, WIDTH)
    metric = get_metric("alpha_req")()
    alone, near, again = PooledRows(), PooledRows(), PooledRows()
    for data in (alone, near, again):
        data.update(z)
    want = metric.estimate(alone).se
    monkeypatch.setattr(_Vectors, "on_gpu", property(lambda self: True))
    rough = metric.estimate(near).se
    assert rough == pytest.approx(want, rel=1e-3)
    monkeypatch.setattr("layerscope.metrics.folds._SHARE_OF_ERROR", 0.0)
    assert metric.estimate(again).se == pytest.approx(want, rel=1e-9)
    assert rough != metric.estimate(again).se


@pytest.mark.parametrize("n", [0, 1, 2, 5, 20, 21, 39, 40, 47])
def test_every_sample_is_in_one_fold(n):
    folds = fold_members(n, torch.device("cpu"))
    assert sum(len(part) for part in folds) == n_folds(n)
    if folds:
        assert sorted(torch.cat([part.flatten() for part in folds]).tolist()) == list(range(n))
        for part in folds:
            assert (part % n_folds(n) == part[:, :1]).all()
