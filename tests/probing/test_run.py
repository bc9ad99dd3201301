"""Wilson's interval against its definition; paired gains are surer than unpaired ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope.core.statistics import Z95
from layerscope.probing.run import score_layers, wilson


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 500), st.floats(0, 1))
def test_wilson_bounds_solve_its_equation(n: int, share: float) -> None:
    """A bound b is where the score test just accepts: (p − b)² = z² b (1 − b) / n."""
    hits = round(share * n)
    p = hits / n
    for bound in wilson(hits, n):
        assert 0 <= bound <= 1
        assert (p - bound) ** 2 == pytest.approx(Z95**2 * bound * (1 - bound) / n, abs=1e-12)


def test_paired_gains_know_that_the_items_are_the_same() -> None:
    rng = np.random.default_rng(0)
    last = rng.random(400) < 0.7
    better = last | (rng.random(400) < 0.1)  # never wrong where the last layer is right
    scored = score_layers(np.stack([better, last]))
    gain, low, high = scored.gains(1)
    assert gain[1] == low[1] == high[1] == 0
    assert 0 < low[0] < gain[0] < high[0]
    assert wilson(int(better.sum()), 400)[0] < last.mean(), "unpaired intervals overlap here"
