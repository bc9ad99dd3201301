"""What follows from the keys of prompts is found once for all sites: it is what each would find."""

from __future__ import annotations

import numpy as np
import pytest

from layerscope.metrics import Options, PooledRows, PromptValues, ViewRows, get_metric
from layerscope.metrics import samples as samples_module

RNG = np.random.default_rng(0)
KEYS = RNG.permutation(60).astype(np.uint64)
BLOCKS = [slice(0, 25), slice(25, 26), slice(26, 60)]


def pooled(values: np.ndarray, found: dict | None = None) -> PooledRows:
    data = PooledRows()
    for block in BLOCKS:
        data.update(values[block], KEYS[block])
    if found is not None:
        data.share_order(found)
    return data


@pytest.mark.parametrize("width", [8, 90], ids=["N>D", "N<D"])
def test_sites_that_share_an_order_have_the_same_values(width: int) -> None:
    found: dict = {}
    metric = get_metric("dataset_entropy")(Options())
    for _ in range(3):
        values = RNG.normal(size=(60, width))
        alone, shared = metric.estimate(pooled(values)), metric.estimate(pooled(values, found))
        assert (alone.value, alone.se) == (shared.value, shared.se)


def test_the_order_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sorts: list[int] = []
    argsort = np.argsort
    monkeypatch.setattr(
        samples_module.np, "argsort", lambda *a, **k: (sorts.append(1), argsort(*a, **k))[1]
    )
    found: dict = {}
    views = ViewRows()
    for block in BLOCKS:
        views.update(RNG.normal(size=(60, 2, 4))[block], KEYS[block])
    views.share_order(found)
    orders = [
        data.order()
        for data in (*(pooled(RNG.normal(size=(60, 4)), found) for _ in range(4)), views)
    ]
    assert len(sorts) == 1
    assert all(order is orders[0] for order in orders)
    np.testing.assert_array_equal(KEYS[orders[0]], np.arange(60))


def test_more_vectors_end_the_sharing() -> None:
    found: dict = {}
    one, other = pooled(RNG.normal(size=(60, 4)), found), pooled(RNG.normal(size=(60, 4)), found)
    one.order()
    other.update(RNG.normal(size=(1, 4)), np.array([100], dtype=np.uint64))
    assert (len(one.order()), len(other.order())) == (60, 61)


def test_only_prompts_with_keys_in_the_same_blocks_share_an_order() -> None:
    found: dict = {}
    pooled(RNG.normal(size=(60, 4)), found)
    whole, keyless = PooledRows(), PooledRows()
    whole.update(RNG.normal(size=(60, 4)), KEYS)
    for block in BLOCKS:
        keyless.update(RNG.normal(size=(60, 4))[block])
    for data in (whole, keyless):
        with pytest.raises(ValueError, match="same prompts"):
            data.share_order(found)


def test_other_values_of_the_same_prompts() -> None:
    tokens = RNG.integers(1, 9, size=60)
    order = np.argsort(KEYS)
    like, plain = PromptValues(7), PromptValues(7)
    like.update(np.zeros(60), tokens, KEYS)
    values = RNG.normal(size=60)
    values[3] = np.nan
    plain.update(values, tokens, KEYS)
    same = like.with_values(values[order])
    metric = get_metric("prompt_entropy")(Options())
    for normalization in metric.info.normalizations:
        one, other = (
            metric.normalized(data, metric.estimate(data), normalization) for data in (plain, same)
        )
        assert (one.value, one.n, one.undefined) == (other.value, other.n, other.undefined)
        np.testing.assert_array_equal(one.influence, other.influence)
    for data in (plain, same):
        data.update(np.array([1.0]), np.array([2]), np.array([0], dtype=np.uint64))
    for one, other in zip(plain.ordered(), same.ordered(), strict=True):
        np.testing.assert_array_equal(np.sort(one), np.sort(other))
    with pytest.raises(ValueError, match="59 values for 60 prompts"):
        like.with_values(values[:59])
