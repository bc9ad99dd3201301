"""Views by nlpaug: repeatable, never blank, and without a trace in the global random streams."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest

from layerscope.data import make_views
from layerscope.extras import MissingExtraError
from layerscope_paper.nlpaug_views import NLPAUG, _steps

TEXTS = (
    "Layers in the middle often hold more than the last.",
    "Another sentence to change.",
    "a",
    " ",
    "",
    "日本",
)


def test_repeatable_in_any_order() -> None:
    pytest.importorskip("nlpaug")
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    made = make_views(TEXTS, 3, seed=0, augmenter=NLPAUG.name)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    random.random()
    assert make_views(TEXTS[::-1], 3, seed=0, augmenter="nlpaug") == made[::-1]
    assert make_views(TEXTS, 3, seed=1, augmenter="nlpaug") != made
    assert len({TEXTS[0], *made[0]}) == 4
    for text, copies in zip(TEXTS, made, strict=True):
        assert all(bool(copy.strip()) == bool(text.strip()) for copy in copies)


def test_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    _steps.cache_clear()
    monkeypatch.setitem(sys.modules, "nlpaug.augmenter.char", None)
    with pytest.raises(MissingExtraError, match=r"\[augment\]'"):
        make_views(["a"], 2, seed=0, augmenter="nlpaug")
