"""The containers of samples: many more vectors than dimensions stream, what is held at once does
not grow with their number, and their order is that of the keys."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from layerscope.metrics import Options, PooledRows, ViewRows, get_metric, metrics
from layerscope.metrics import samples as samples_module
from layerscope.metrics.samples import PromptValues
from tests.metrics.harness import SAMPLES, assert_same
from tests.metrics.support import accumulate

WIDTH, VIEWS = 8, 3


@pytest.fixture
def largest(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows in each piece of the data that is turned into float64."""
    seen: list[int] = []
    own = samples_module._doubles

    def watched(block: np.ndarray | torch.Tensor) -> torch.Tensor:
        seen.append(len(block))
        return own(block)

    monkeypatch.setattr(samples_module, "_doubles", watched)
    monkeypatch.setattr(samples_module, "BLOCK_ROWS", 64)
    return seen


@pytest.mark.parametrize(
    "name", ["dataset_entropy", "effective_rank", "rankme", "alpha_req", "anisotropy", "lidar"]
)
def test_pieces_stay_small(name: str, largest: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    metric = get_metric(name)(Options())
    views = metric.info.level == "views"
    monkeypatch.setattr(PooledRows, "all", None)  # nothing may ask for all of it
    monkeypatch.setattr(ViewRows, "all", None)
    for n in (500, 5000):
        data = ViewRows() if views else PooledRows()
        shape = (n, VIEWS, WIDTH) if views else (n, WIDTH)
        data.update(np.random.default_rng(0).normal(size=shape).astype(np.float32), np.arange(n))
        largest.clear()
        estimate = metric.estimate(data)
        assert np.isfinite(estimate.value)
        assert max(largest) <= 64
        assert sum(largest) >= n


def test_the_same_in_blocks_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    z = np.random.default_rng(0).normal(size=(300, WIDTH))
    found = []
    for rows in (7, 64, 4096):
        monkeypatch.setattr(samples_module, "BLOCK_ROWS", rows)
        data = PooledRows()
        data.update(z[:100], np.arange(100))
        data.update(z[100:], np.arange(100, 300))
        found.append(get_metric("dataset_entropy")().estimate(data))
    for other in found[1:]:
        assert other.value == pytest.approx(found[0].value, rel=1e-12)
        assert other.se == pytest.approx(found[0].se, rel=1e-9)


def test_small_blocks_are_joined_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples_module, "_JOINED_NUMBERS", {"cpu": 100 * WIDTH})
    z = np.random.default_rng(0).normal(size=(305, WIDTH)).astype(np.float32)
    whole, parts = PooledRows(), PooledRows()
    whole.update(z, np.arange(305))
    cuts = [
        0,
        30,
        60,
        90,
        95,
        300,
        305,
    ]  # one block is larger than what is joined: it stays by itself
    for start, stop in itertools.pairwise(cuts):
        parts.update(z[start:stop], np.arange(start, stop))
    assert [len(block) for block in parts.blocks()] == [95, 205, 5]
    assert np.array_equal(torch.cat(list(parts.blocks())).numpy(), z.astype(np.float64))
    once, often = (get_metric("dataset_entropy")().estimate(data) for data in (whole, parts))
    assert often.value == pytest.approx(once.value, rel=1e-12)
    assert often.se == pytest.approx(once.se, rel=1e-9)


@pytest.mark.parametrize("name", sorted(metrics()))
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
            assert_same(kind().estimate(data), accumulate(other, s).compute())


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
