"""Many more vectors than dimensions stream: what is held at once does not grow with their
number."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from layerscope.metrics import Options, PooledRows, ViewRows, get_metric
from layerscope.metrics import samples as samples_module

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
    assert [len(block) for block in parts.blocks(10)] == [90, 210, 5]
    once, often = (get_metric("dataset_entropy")().estimate(data) for data in (whole, parts))
    assert often.value == pytest.approx(once.value, rel=1e-12)
    assert often.se == pytest.approx(once.se, rel=1e-9)
