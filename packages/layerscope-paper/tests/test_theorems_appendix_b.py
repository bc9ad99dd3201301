"""Appendix B and Proposition 1: what is false as printed, and what holds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from layerscope_paper.theorems.appendix_b import logdet_entropy, rows, shannon, wide_angle


def test_logdet_does_not_bound_the_entropy_as_printed() -> None:
    found = rows()
    assert found[0].ours == pytest.approx(math.log(100) - math.log(2) - math.log(2))  # K = 10·I₂
    assert found[0].verdict == "not supported"
    rng = np.random.default_rng(0)
    for _ in range(50):  # with trace 1 it always holds, below −log 2
        p = rng.dirichlet(np.ones(5))
        assert logdet_entropy(p) <= -math.log(2) < 0 <= shannon(p)
    assert found[2].verdict == "not supported"  # larger α weighs small eigenvalues less


def test_the_tail_of_proposition_1_is_exact_and_allowed() -> None:
    special = pytest.importorskip("scipy.special")
    for dimension in (3, 8, 64):
        for epsilon in (0.1, 0.4, 0.8):
            wanted = 1 - special.betainc(0.5, (dimension - 1) / 2, epsilon**2)
            assert wide_angle(dimension, epsilon) == pytest.approx(wanted, rel=1e-4, abs=1e-12)
    row = rows()[-1]
    assert row.verdict == "supported"
    assert 0.3 < (row.ours or 0) < 1
