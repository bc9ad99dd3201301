"""The cost model: what it counts, and that a fit finds what was put in."""

from __future__ import annotations

import cost
import numpy as np
import pytest

POINTS = [
    cost.Point(prompts, tokens, width, blocks, views)
    for prompts in (50, 400)
    for tokens in (16, 128)
    for width in (64, 512)
    for blocks in (3, 24)
    for views in (0, 4)
]


def test_counts() -> None:
    p = cost.Point(prompts=10, tokens=4, width=64, blocks=2, views=1)
    assert cost.flops(p) == 10 * 2 * 4 * (2 * 2 * 12 * 64**2 + 4 * 2 * 4 * 64)
    assert cost.eigen(p) == 2 * 10 * 3 * 4**3
    assert cost.states(p) == 10 * 2 * 3 * 4 * 64
    assert cost.cells(p) == 10 * 2 * 3


def test_a_fit_finds_what_was_put_in() -> None:
    true = {"flops": 9e-12, "elements": 1e-9, "eigen": 3e-10, "states": 2e-8, "cells": 1e-4, "spectra": 2e-9, "sites": 2e-2}
    seconds = [sum(cost.predict(true, p).values()) for p in POINTS]
    passes = [sum(cost.predict(true, p, bare=True).values()) for p in POINTS]
    assert cost.fit(POINTS, seconds, passes) == pytest.approx(true, rel=1e-6)
    noisy = np.array(seconds) * np.random.default_rng(0).uniform(0.95, 1.05, len(seconds))
    found = cost.fit(POINTS, noisy.tolist(), passes)
    for p, s in zip(POINTS, seconds, strict=True):
        assert sum(cost.predict(found, p).values()) == pytest.approx(s, rel=0.08)


def test_a_model_of_a_points_shape() -> None:
    point = cost.Point(prompts=3, tokens=9, width=64, blocks=2)
    model = cost.make_model(point)
    assert (model.n_blocks, model.width) == (2, 64)
    assert [len(ids) for ids in model.tokenize(cost.make_texts(point), 99).ids] == [9, 9, 9]
