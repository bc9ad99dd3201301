"""The vectors of a site: they are sorted by their keys, groups follow the order of arrival, and
what is turned into float64 at once does not grow with their number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from layerscope.metrics import Options, SiteVectors, estimate_vectors, get_metric, metrics
from layerscope.metrics import vectors as vectors_module
from layerscope.metrics.vectors import prepare_rows
from tests.metrics.harness import SAMPLES, assert_same
from tests.metrics.support import of_samples

WIDTH, VIEWS = 8, 3


@pytest.fixture
def largest(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows in each piece of the data that is turned into float64."""
    seen: list[int] = []
    own = torch.Tensor.double

    def watched(block: torch.Tensor) -> torch.Tensor:
        if block.dtype == torch.float32:
            seen.append(len(block))
        return own(block)

    monkeypatch.setattr(torch.Tensor, "double", watched)
    monkeypatch.setattr(vectors_module, "BLOCK_ROWS", 64)
    return seen


@pytest.mark.parametrize(
    "name", ["dataset_entropy", "effective_rank", "rankme", "alpha_req", "anisotropy"]
)
def test_pieces_stay_small(name: str, largest: list[int]) -> None:
    for n in (500, 5000):
        rows = torch.from_numpy(np.random.default_rng(0).normal(size=(n, WIDTH))).float()
        largest.clear()
        estimate = estimate_vectors(get_metric(name), SiteVectors(rows), Options())
        assert np.isfinite(estimate.value)
        assert max(largest) <= 64
        assert sum(largest) >= n


@pytest.mark.parametrize("name", ["dataset_entropy", "lidar", "anisotropy"])
def test_the_same_in_blocks_of_any_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [of_samples(name, samples) for samples in SAMPLES.values()]
    for rows in (5, 64):
        monkeypatch.setattr(vectors_module, "BLOCK_ROWS", rows)
        for samples, expected in zip(SAMPLES.values(), whole, strict=True):
            assert_same(of_samples(name, samples), expected)


@pytest.mark.parametrize("level", ["pooled", "views"])
def test_metrics_share_what_several_need(level: str) -> None:
    """A profile asks several metrics, of several options, for their estimate at one site."""
    samples = SAMPLES["N>D"]
    views = torch.from_numpy(samples.views)
    rows = torch.from_numpy(samples.pooled) if level == "pooled" else views[:, 0]
    site = SiteVectors.of(rows, views, samples.keys)
    for name, metric in metrics().items():
        if metric.info.level == level:
            estimate_vectors(metric, site, Options(alpha=2.0))
            assert_same(estimate_vectors(metric, site, Options()), of_samples(name, samples))


def test_vectors_follow_their_keys() -> None:
    views = torch.arange(12.0).reshape(3, 2, 2)
    site = SiteVectors.of(views[:, 1], views, np.array([30, 10, 20]))
    assert site.rows[:, 0].tolist() == [6.0, 10.0, 2.0]
    assert site.views is not None
    assert site.views[:, 0, 0].tolist() == [4.0, 8.0, 0.0]
    with pytest.raises(ValueError, match="2 keys for 3 prompts"):
        SiteVectors.of(views[:, 0], None, np.array([1, 2]))


def test_groups_follow_the_order_of_arrival() -> None:
    rows = torch.randn(7, 3, dtype=torch.float64)
    keys = np.array([5, 3, 6, 0, 2, 1, 4])
    grouped, preparation = SiteVectors.of(rows, None, keys).in_groups("centered", 3)
    expected = torch.cat([prepare_rows(part, "centered") for part in rows.split(3)])
    assert preparation == "raw"
    assert torch.equal(grouped.rows, expected[np.argsort(keys)])
    site = SiteVectors.of(rows, None, keys)
    assert site.in_groups("unit", 3) == (site, "unit")  # nothing to center
