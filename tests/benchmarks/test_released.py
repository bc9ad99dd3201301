"""The released code's way of computing gives what a profile gives: both sides of the benchmark do
the same work."""

from __future__ import annotations

import pytest
import released

import layerscope
from layerscope.data import make_views
from tests.tiny import tiny_model

TEXTS = [
    f"Text {i} says that {word} was {'not ' * (i % 3)}there at {i * 7 % 24} o'clock."
    for i, word in enumerate("abcdefgh")
]


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_values_agree(family: str) -> None:
    model = tiny_model(family)
    ids = model.tokenize(TEXTS, 24).ids
    views = [model.tokenize(list(made), 24).ids for made in make_views(TEXTS, released.VIEWS, 0)]
    run = layerscope.profile(
        model,
        TEXTS,
        metrics=list(released.METRICS),
        views=released.VIEWS,
        max_length=24,
        final_norm="hf",
        progress=False,
    )
    values = {name: compute(model, ids, views) for name, compute in released.RELEASED.items()}
    assert all(len(found) == model.n_blocks + 1 for found in values.values())
    differences = released._difference(run, values)
    assert set(differences) == set(released.METRICS) - {"dime"}
    assert max(differences.values()) < 1e-5, differences
