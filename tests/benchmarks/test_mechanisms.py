"""A mechanism that is switched off changes the time of a profile and nothing else; every switch
fits the code as it is."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pandas as pd
import pytest

from layerscope.data import Corpus
from layerscope.forward import EarlyPlanner
from layerscope.profiling import job as job_module
from layerscope.profiling.config import make_config
from layerscope.profiling.encode import MemoryStore
from layerscope.profiling.job import Job
from layerscope.progress import Silent
from tests.tiny import tiny_model

mechanisms = importlib.import_module("mechanisms")
TEXTS = [f"The {i}th text has {'some more ' * (i % 4)}words, and then it ends." for i in range(7)]


@pytest.fixture(scope="module")
def profiled() -> Any:
    """A profile as on a GPU: in memory, in several shards."""
    model = tiny_model("llama")
    config = make_config(max_length=24, views=2, permutations=2, metrics=["all"])

    def work(store: MemoryStore | None = None) -> pd.DataFrame:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(job_module, "choose_shard_size", lambda *_: 3)
            patch.setattr("layerscope.forward._FIRST_ITEMS", (2, 2))
            return Job(model, Corpus.of(TEXTS), config).run(store or MemoryStore(), Silent()).table

    return work


@pytest.fixture(scope="module")
def usual(profiled: Any) -> pd.DataFrame:
    return profiled()


@pytest.mark.parametrize("one", mechanisms.MECHANISMS, ids=lambda one: one.name)
def test_the_table_stays_the_same(one: Any, profiled: Any, usual: pd.DataFrame) -> None:
    before = [getattr(thing, name) for thing, name, _ in one.off]
    with one.switched_off():
        assert [getattr(thing, name) for thing, name, _ in one.off] == [
            other for _, _, other in one.off
        ]
        table = profiled()
    assert [getattr(thing, name) for thing, name, _ in one.off] == before
    for column in ("value", "ci_low", "ci_high"):
        np.testing.assert_allclose(
            table[column], usual[column], rtol=2e-3, atol=2e-5, err_msg=column
        )
    assert one.lines > 0 or not one.by_default
    assert set(one.cases) <= set(mechanisms.SETTINGS)


def test_what_is_switched_off_is_not_at_work(
    profiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_name = {one.name.split(":")[0]: one for one in mechanisms.MECHANISMS}
    planners: list[bool] = []
    first = EarlyPlanner.first
    monkeypatch.setattr(
        EarlyPlanner, "first", lambda self: planners.append(self.early) or first(self)
    )
    promised = MemoryStore()
    monkeypatch.setattr(
        promised, "read", lambda index: promised._shards[index]
    )  # what is promised is not asked for
    with by_name["early planner"].switched_off(), by_name["promises"].switched_off():
        profiled(promised)
        assert not promised._later
    profiled()
    assert planners == [False, True]


def test_without_a_gpu_it_says_what_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["mechanisms.py"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match=r"need a CUDA GPU.*--cases cpu"):
        mechanisms.main()
