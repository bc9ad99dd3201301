"""Parts do not overlap, keep the classes' shares, and depend on the seed alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope.errors import DataError
from layerscope.probing.splits import make_split


@settings(max_examples=40, deadline=None)
@given(st.integers(30, 300), st.integers(2, 6), st.integers(0, 5), st.one_of(st.none(), st.integers(10, 200)))
def test_parts_are_disjoint_and_balanced(count: int, classes: int, seed: int, limit: int | None) -> None:
    labels = np.arange(count) % classes
    split = make_split(labels, seed=seed, limit=limit)
    every = np.concatenate([split.train, split.validation, split.test])
    assert len(np.unique(every)) == len(every) <= count
    if limit is None:
        assert len(every) == count
        assert len(split.test) == round(0.2 * count)
    else:
        assert len(split.test) <= limit
        assert len(split.train) + len(split.validation) <= limit
    for part in (split.train, split.test):
        shares = np.bincount(labels[part], minlength=classes)
        assert shares.max() - shares.min() <= 3, "each of the three draws may be one off"
    again = make_split(labels, seed=seed, limit=limit)
    assert all(np.array_equal(getattr(split, p), getattr(again, p)) for p in ("train", "validation", "test"))


def test_the_datas_own_parts_are_kept() -> None:
    labels = np.arange(100) % 2
    split = make_split(labels, train=np.arange(70), test=np.arange(80, 100), validation=np.arange(70, 80))
    assert split.sizes() == {"train": 70, "validation": 10, "test": 20}
    drawn = make_split(labels, train=np.arange(80), test=np.arange(80, 100))
    assert drawn.sizes() == {"train": 72, "validation": 8, "test": 20}
    assert (drawn.validation < 80).all()


def test_one_class_cannot_be_probed() -> None:
    with pytest.raises(DataError, match="two classes"):
        make_split(np.zeros(50, dtype=int))
    with pytest.raises(DataError, match="at least 2"):
        make_split(np.arange(50) % 2, limit=1)
