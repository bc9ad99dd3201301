"""A tiny model: every number of a profile against an independent computation, three views and
padded batches included."""

from __future__ import annotations

from functools import cache

import pytest

from layerscope.models import LoadedModel
from layerscope.profiling import profile
from tests.profiling.reference import PAPER, Independent, assert_agrees
from tests.tiny import tiny_model


@cache
def independent(family: str, texts: tuple[str, ...]) -> tuple[LoadedModel, Independent]:
    model = tiny_model(family)
    return model, Independent(model, list(texts), tokens=40, views=3, seed=8)


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("final_norm", ["raw", "applied", "hf"])
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_equals_an_independent_computation(
    family: str, final_norm: str, batch_size: int, texts: list[str]
) -> None:
    model, alone = independent(family, tuple(texts))
    run = profile(
        model,
        texts,
        metrics=PAPER,
        max_length=40,
        views=3,
        seed=8,
        final_norm=final_norm,
        batch_size=batch_size,
    )
    assert_agrees(run.table, alone.table(final_norm))
