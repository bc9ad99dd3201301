"""Published rivals: each picks what its definition says, on vectors where that is known."""

from __future__ import annotations

import numpy as np
from rivals import AlphaReQ, FixedDepth, Loes, LowestTwoNN, RankMe

from tests.selection.judges.support import CANDIDATES, DEFAULT


class Layers:
    """The layers of one readout: white noise, noise whose eigenvalues fall as 1/i, and noise in two
    dimensions."""

    readouts = (DEFAULT,)
    layers = (0, 1, 2)

    def vectors(self, readout, view="texts"):
        rng = np.random.default_rng(0)
        white = rng.normal(size=(400, 20))
        falling = white / np.sqrt(np.arange(1, 21))
        flat = white[:, :2] @ rng.normal(size=(2, 20)) + 1e-3 * rng.normal(size=(400, 20))
        return np.stack([white, falling, flat]).astype(np.float32)


def test_each_rival_picks_what_it_looks_for():
    assert RankMe().judge(Layers()).best() == (0, 0)
    assert Loes().judge(Layers()).best() == (0, 0)
    assert AlphaReQ().judge(Layers()).best() == (0, 1)
    assert LowestTwoNN().judge(Layers()).best() == (0, 2)


def test_fixed_depth_looks_at_nothing():
    class Deep:
        readouts, layers = CANDIDATES.readouts, tuple(range(11))

    assert FixedDepth().judge(Deep()).best() == (0, 8)


def test_rivals_give_no_intervals():
    low, high = RankMe().judge(Layers()).interval()
    assert np.isnan(low).all()
    assert np.isnan(high).all()
