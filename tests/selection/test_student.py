"""Student's t against scipy."""

from __future__ import annotations

import pytest

from layerscope.selection import student


@pytest.mark.parametrize("df", [1, 2, 3, 4, 5, 8, 15])
def test_equals_scipy(df: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    for t in (-6.0, -1.3, 0.0, 0.4, 2.5):
        assert student.cdf(t, df) == pytest.approx(stats.t.cdf(t, df), abs=1e-12)
    for p in (0.025, 0.5, 0.975):
        assert student.quantile(p, df) == pytest.approx(stats.t.ppf(p, df), abs=1e-8)


def test_needs_a_degree_of_freedom() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        student.cdf(0.0, 0)
