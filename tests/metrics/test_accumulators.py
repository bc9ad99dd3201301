"""Batches, their order and merges change nothing, for every metric there is (method §4 item 7)."""

from functools import cache

import numpy as np
import pytest
import torch

from layerscope.metrics import Options, get_metric, interval, metrics
from layerscope.metrics.samples import PooledRows, PromptValues, ViewRows
from tests.metrics.support import accumulate, add, make_samples

N = 70
SAMPLES = {"N>D": make_samples(N, 9, seed=1), "N<D": make_samples(N, 90, seed=2, q=2, longest=6)}
everything = pytest.mark.parametrize("name", sorted(metrics()))
both_widths = pytest.mark.parametrize("width", SAMPLES)
keyed_or_not = pytest.mark.parametrize("keyed", [True, False], ids=["keys", "no keys"])


@cache
def of_all(name, width, keyed):
    """From all samples at once."""
    return accumulate(name, SAMPLES[width], N, keyed).compute()


def facts(estimate):
    return np.array(
        [estimate.value, *interval(estimate), estimate.n, estimate.d, estimate.undefined],
        dtype=float,
    )


def assert_same(a, b):
    np.testing.assert_allclose(facts(a), facts(b), rtol=1e-9, atol=1e-9)
    assert np.isfinite(facts(a)).all(), "a comparison of NaN with NaN says nothing"
    if a.value not in (0.0, 1.0):
        assert np.subtract(*interval(a)) < 0, "an interval of no width says nothing"


@everything
@both_widths
@keyed_or_not
def test_batch_size(name, width, keyed):
    whole = of_all(name, width, keyed)
    for batch in (1, 7, 64):
        assert_same(accumulate(name, SAMPLES[width], batch, keyed).compute(), whole)


@everything
@both_widths
@keyed_or_not
def test_order(name, width, keyed):
    s = SAMPLES[width]
    whole = of_all(name, width, keyed)
    for seed in (0, 1):
        order = np.random.default_rng(seed).permutation(N)
        metric = get_metric(name)()
        for start in range(0, N, 16):
            add(metric, s, order[start : start + 16], keyed)
        assert_same(metric.compute(), whole)


@everything
@both_widths
@keyed_or_not
def test_merge(name, width, keyed):
    s = SAMPLES[width]
    whole = of_all(name, width, keyed)
    order = np.random.default_rng(3).permutation(N)
    workers = []
    for part in np.split(order, [5, 40]):
        worker = get_metric(name)()
        for start in range(0, len(part), 8):
            add(worker, s, part[start : start + 8], keyed)
        workers.append(worker)
    first, *others = (workers[i] for i in (2, 0, 1))
    for other in others:
        first.merge(other)
    assert_same(first.compute(), whole)


@everything
def test_more_data_after_a_result(name):
    """What was computed (and remembered) before must not be the answer after more samples."""
    s = SAMPLES["N>D"]
    metric = get_metric(name)()
    add(metric, s, np.arange(30), True)
    early = metric.compute()
    add(metric, s, np.arange(30, 50), True)
    first_fifty = get_metric(name)()
    add(first_fifty, s, np.arange(50), True)
    assert_same(metric.compute(), first_fifty.compute())
    other = get_metric(name)()
    add(other, s, np.arange(50, N), True)
    late = metric.merge(other).compute()
    assert_same(late, of_all(name, "N>D", True))
    assert early.n == 30
    assert early.value != late.value


@everything
def test_computing_twice_gives_the_same(name):
    metric = accumulate(name, SAMPLES["N>D"], 16)
    assert facts(metric.compute()).tolist() == facts(metric.compute()).tolist()


@everything
def test_inside_inference_mode(name):
    outside = accumulate(name, SAMPLES["N>D"], 16).compute()
    with torch.inference_mode():
        inside = accumulate(name, SAMPLES["N>D"], 16).compute()
    assert_same(inside, outside)


@everything
def test_metrics_may_share_their_samples(name):
    """A profile keeps one container per level and asks several metrics, of several options, for
    their estimate."""
    s = SAMPLES["N>D"]
    level = metrics()[name].info.level
    if level == "tokens":
        return
    data = accumulate(name, s).data
    for other, kind in metrics().items():
        if kind.info.level == level:
            kind(Options(alpha=2.0)).estimate(data)
            assert_same(kind().estimate(data), of_all(other, "N>D", True))


def test_vectors_that_share_their_first_coordinates():
    """The canonical order without keys must tell apart vectors that differ only far down."""
    rng = np.random.default_rng(0)
    rows = np.zeros((12, 2, 40))
    rows[:, :, 20:] = rng.normal(size=(12, 2, 20))
    a = get_metric("dime")().update(rows).compute()
    b = get_metric("dime")().update(rows[::-1].copy()).compute()
    assert a.value == pytest.approx(b.value, abs=1e-12)
    pooled = PooledRows()
    pooled.update(rows[::-1, 0])
    again = PooledRows()
    again.update(rows[:, 0])
    assert torch.equal(pooled.all(), again.all())


def test_canonical_order_follows_the_keys():
    data = ViewRows()
    data.update(np.arange(12.0).reshape(3, 2, 2), keys=np.array(["c", "a", "b"]))
    assert data.view(1)[:, 0].tolist() == [6.0, 10.0, 2.0]
    assert data.to_canonical(np.array([3, 1, 2])).tolist() == [1, 2, 3]
    values = PromptValues()
    values.update([1.0, 2.0, 3.0], [10, 20, 30], keys=[5, 1, 3])
    assert [v.tolist() for v in values.ordered()] == [[2.0, 3.0, 1.0], [20, 30, 10]]


def test_blocks_of_whole_groups():
    data = PooledRows()
    for start in range(0, 20, 7):
        data.update(np.arange(start, min(20, start + 7), dtype=float)[:, None])
    for whole in (1, 3, 7, 8, 50):
        blocks = list(data.blocks(whole))
        assert torch.cat(blocks)[:, 0].tolist() == list(range(20))
        assert all(len(b) % whole == 0 for b in blocks[:-1])


def test_blocks_larger_than_memory_allows(monkeypatch):
    monkeypatch.setattr("layerscope.metrics.samples.BLOCK_ROWS", 5)
    for name in ("dataset_entropy", "lidar", "anisotropy"):
        for s in SAMPLES.values():
            metric = accumulate(name, s)
            assert max(len(b) for b in metric.data.blocks()) == 5
            small = metric.compute()
            monkeypatch.undo()
            assert_same(small, accumulate(name, s).compute())
            monkeypatch.setattr("layerscope.metrics.samples.BLOCK_ROWS", 5)


def test_info_is_complete():
    for name, metric in metrics().items():
        info = metric.info
        assert info.name == name
        assert info.level in ("tokens", "pooled", "views")
        for text in (info.title, info.unit, info.higher_means, info.bounds_text, info.citation):
            assert text.strip()
        assert "raw" in info.normalizations
        assert "keep" in info.sinks
    core = {n for n, m in metrics().items() if m.info.core}
    paper = {
        "prompt_entropy",
        "dataset_entropy",
        "effective_rank",
        "curvature",
        "infonce",
        "lidar",
        "dime",
    }
    assert core == paper
    assert list(metrics())[:7] == sorted(paper)
