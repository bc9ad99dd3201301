"""p-values of many tests."""

from __future__ import annotations

import numpy as np
import pytest

from layerscope_paper.correlation.adjust import holm, min_p


def test_adjusted_p_values() -> None:
    p = np.array([0.01, 0.04, 0.03, 0.005])
    assert holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(np.array([0.9, 0.8])).max() == 1.0
    assert len(holm(np.array([]))) == 0


def test_the_smallest_adjusted_p_of_unrelated_statistics_is_uniform() -> None:
    rng = np.random.default_rng(0)
    found = [min_p(rng.normal(size=6), rng.normal(size=(6, 99))).min() for _ in range(1500)]
    assert np.mean(np.array(found) <= 0.01 + 1e-9) < 0.02  # ranked apart: in 6 %
    found = [min_p(rng.normal(size=6), rng.normal(size=(6, 999))).min() for _ in range(600)]
    assert 0.03 < np.mean(np.array(found) <= 0.05 + 1e-9) < 0.08
