"""The way a profile takes on a GPU (reading ahead, shards on the device, sites together), walked on the CPU: the same tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from layerscope.data import Corpus
from layerscope.errors import UnknownNameError
from layerscope.metrics.samples import _Vectors
from layerscope.models import LoadedModel
from layerscope.profiling import Run
from layerscope.profiling import job as job_module
from layerscope.profiling.config import make_config
from layerscope.profiling.held import HeldShards, WriteBehind, fits
from layerscope.profiling.job import Job
from layerscope.profiling.plan import choose_shard_size, make_plan
from layerscope.profiling.reading import ReadAhead, read_prompts, read_views
from layerscope.profiling.tables import TableBuilder
from layerscope.progress import Silent
from layerscope.store import Shard, ShardStore
from tests.tiny import tiny_model

TEXTS = [f"The {i}th text has {'some more ' * (i % 4)}words, and then it ends." for i in range(9)]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny_model("llama")


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "choose_shard_size", lambda *_: 4)


def job(model: LoadedModel, **settings: object) -> Job:
    return Job(model, Corpus.of(TEXTS), make_config(max_length=24, views=3, permutations=2, **settings))


def assert_same(one: Run, other: Run) -> None:
    pd.testing.assert_frame_equal(one.prompts, other.prompts, rtol=1e-9)
    keys = ["site", "metric", "normalization", "sink", "n"]
    pd.testing.assert_frame_equal(one.table[keys], other.table[keys])
    for column in ("value", "ci_low", "ci_high"):
        np.testing.assert_allclose(other.table[column], one.table[column], rtol=2e-3, atol=2e-5, err_msg=column)


def test_shards_held_and_sites_together(model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = job(model).run(ShardStore(tmp_path), Silent())
    held = HeldShards()
    monkeypatch.setattr(_Vectors, "on_gpu", property(lambda self: True))
    monkeypatch.setattr(TableBuilder, "_sites_together", lambda self, prompts: 2)
    begin = TableBuilder.__init__

    def as_on_gpu(self: TableBuilder, *given: object) -> None:
        begin(self, *given)  # type: ignore[arg-type]
        self.device = torch.device("cpu")

    monkeypatch.setattr(TableBuilder, "__init__", as_on_gpu)
    together = job(model).run(held, Silent())
    assert isinstance(held.read(0).pooled, torch.Tensor)
    assert_same(plain, together)


def test_reading_ahead_reads_the_same(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerscope.profiling.reading._FEWEST_IN_POOL", 1)
    config = make_config(max_length=24, views=3)
    plan = make_plan(model, TEXTS, 24, 4)
    assert plan.ids is not None
    with ReadAhead(model, plan, plan.shards, config) as ahead:
        for shard in plan.shards:
            prompts = ahead.prompts(shard)
            assert [list(ids) for ids in prompts] == model.tokenize([TEXTS[i] for i in shard], 24).ids
            views, alone = ahead.views(shard), read_views(model, plan, shard, prompts, config, None)
            assert views.empty == alone.empty
            assert [list(ids) for ids in views.ids] == [list(ids) for ids in alone.ids]


def test_ids_are_made_again_where_they_would_take_memory(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = make_plan(model, TEXTS, 24, 4)
    monkeypatch.setattr("layerscope.profiling.plan._TOKENS_KEPT", 30)
    plan = make_plan(model, TEXTS, 24, 4)
    assert plan.ids is None
    for shard in plan.shards:
        again, before = read_prompts(model, plan, shard), read_prompts(model, kept, shard)
        assert [list(ids) for ids in again] == [list(ids) for ids in before]


def test_only_a_gpu_holds_shards() -> None:
    assert not fits(torch.device("cpu"), 1, 1)


def test_shards_are_larger_on_a_gpu() -> None:
    assert choose_shard_size("cuda", 25, 16, 1024) > choose_shard_size("cpu", 25, 16, 1024)


def test_writing_behind_writes_the_same(model: LoadedModel, tmp_path: Path) -> None:
    held = HeldShards()
    job(model).run(held, Silent())
    store = ShardStore(tmp_path)
    with WriteBehind(store) as write:
        for index in range(2):
            shard = held.read(index)
            write(index, Shard(shard.prompts, np.asarray(shard.pooled), shard.values))
    for index in range(2):
        np.testing.assert_array_equal(store.read(index).pooled[1], np.asarray(held.read(index).pooled[1]))


def test_an_error_in_writing_is_not_lost() -> None:
    class Full(HeldShards):
        def write(self, index: int, shard: Shard) -> None:
            raise OSError("no space")

    nothing = Shard(np.arange(1), np.zeros((1, 1, 1, 1)), {})
    for count in (1, 2):
        with pytest.raises(OSError, match="no space"), WriteBehind(Full()) as write:
            list(map(write, range(count), [nothing] * count))


def test_which_entropy_is_a_setting_of_the_run() -> None:
    assert make_config().options.entropy == "exact"
    assert make_config(entropy="approximate").as_dict()["options"]["entropy"] == "approximate"
    with pytest.raises(UnknownNameError, match="exact"):
        make_config(entropy="rough")
