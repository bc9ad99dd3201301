"""The way a profile takes on a GPU (reading ahead, shards on the device, sites together), walked on
the CPU: the same tables."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from layerscope.data import Corpus
from layerscope.errors import UnknownNameError
from layerscope.forward import Prefetcher, choose_shard_size, items_per_batch, make_plan, read_rows
from layerscope.metrics.samples import _Vectors
from layerscope.models import LoadedModel
from layerscope.models.inputs import ItemReader, ReadSettings, ViewSettings
from layerscope.profiling import Profile
from layerscope.profiling import encode as encode_module
from layerscope.profiling import job as job_module
from layerscope.profiling.config import make_config
from layerscope.profiling.encode import MemoryStore, write_behind
from layerscope.profiling.job import Job
from layerscope.profiling.tables import TableBuilder
from layerscope.progress import Silent
from layerscope.store import Shard, ShardStore
from layerscope_gpu import ahead, eigenvalues
from tests.kernels import use_kernels
from tests.tiny import tiny_model

TEXTS = [f"The {i}th text has {'some more ' * (i % 4)}words, and then it ends." for i in range(9)]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny_model("llama")


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "choose_shard_size", lambda *_: 4)


def job(model: LoadedModel, **settings: object) -> Job:
    return Job(
        model, Corpus.of(TEXTS), make_config(max_length=24, views=3, permutations=2, **settings)
    )


def assert_same(one: Profile, other: Profile) -> None:
    pd.testing.assert_frame_equal(
        one.prompts, other.prompts, rtol=1e-7
    )  # which prompts share a batch decides the last digits
    keys = ["site", "metric", "normalization", "sink", "n"]
    pd.testing.assert_frame_equal(one.table[keys], other.table[keys])
    for column in ("value", "ci_low", "ci_high"):
        np.testing.assert_allclose(
            other.table[column], one.table[column], rtol=2e-3, atol=2e-5, err_msg=column
        )


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = TableBuilder.__init__

    def begin_as_on_gpu(self: TableBuilder, *given: object) -> None:
        begin(self, *given)  # type: ignore[arg-type]
        self.device = torch.device("cpu")

    monkeypatch.setattr(_Vectors, "on_gpu", property(lambda self: True))
    monkeypatch.setattr(TableBuilder, "_sites_together", lambda self, prompts: 2)
    monkeypatch.setattr(TableBuilder, "__init__", begin_as_on_gpu)


def test_shards_held_and_sites_together(
    model: LoadedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    plain = job(model).run(ShardStore(tmp_path), Silent())
    held = MemoryStore()
    request.getfixturevalue("as_on_gpu")
    together = job(model).run(held, Silent())
    assert isinstance(held.read(0).pooled, torch.Tensor)
    assert_same(plain, together)
    own, tried = TableBuilder._group_on_gpu, []

    def without_room_for_two(
        self: TableBuilder, indices: range, shards: list[Shard]
    ) -> list[object]:
        tried.append(len(indices))
        if len(indices) > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return own(self, indices, shards)  # type: ignore[return-value]

    monkeypatch.setattr(TableBuilder, "_group_on_gpu", without_room_for_two)
    assert_same(plain, job(model).run(MemoryStore(), Silent()))
    assert tried == [2] + [1] * len(plain.table["site"].unique())


def open_texts(model: LoadedModel) -> ItemReader:
    return model.open_items(Corpus.of(TEXTS), ReadSettings(24))


def test_prefetching_reads_the_same(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerscope.models.inputs._FEWEST_IN_POOL", 1)
    settings, reader = ViewSettings(3), open_texts(model)
    plan = make_plan(reader, 4)
    assert plan.rows is not None
    with Prefetcher(reader, plan, plan.shards, settings) as ahead:
        for shard in plan.shards:
            rows = ahead.rows(shard)
            assert [list(ids) for ids in rows] == model.tokenize([TEXTS[i] for i in shard], 24).ids
            views, alone = ahead.views(shard), open_texts(model).read_views(shard, rows, settings)
            assert views.empty == alone.empty
            assert [list(ids) for ids in views.rows] == [list(ids) for ids in alone.rows]


def test_ids_are_made_again_where_they_would_take_memory(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = open_texts(model)
    kept = make_plan(reader, 4)
    monkeypatch.setattr("layerscope.models.inputs._MOST_TOKENS", 30)
    plan = make_plan(reader, 4)
    assert plan.rows is None
    for shard in plan.shards:
        again, before = read_rows(reader, plan, shard), read_rows(reader, kept, shard)
        assert [list(ids) for ids in again] == [list(ids) for ids in before]


def test_shards_are_larger_on_a_gpu() -> None:
    assert choose_shard_size("cuda", 25, 16, 1024) > choose_shard_size("cpu", 25, 16, 1024)


def test_views_of_a_shard_fill_whole_batches() -> None:
    most = choose_shard_size("cuda", 25, 16, 1024)
    size = choose_shard_size("cuda", 25, 16, 1024, per_batch=33)
    assert most - 33 < size <= most
    assert size % 33 == 0
    assert (
        choose_shard_size("cuda", 25, 16, 1024, per_batch=most + 1) == most
    )  # those of one shard are less than a batch
    assert choose_shard_size("cpu", 25, 16, 1024, per_batch=33) == choose_shard_size(
        "cpu", 25, 16, 1024
    )


def test_of_how_many_items_the_views_fill_a_batch(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layerscope.forward.token_budget", lambda device, width: 67584)
    assert items_per_batch(model, 128, 0) == 0
    assert items_per_batch(model, 128, 16) == items_per_batch(model, None, 16) == 33
    assert items_per_batch(model, 8192, 16) == 1  # longer than a batch
    assert items_per_batch(model, 128, 16, most=64) == 4


def test_writing_behind_writes_the_same(model: LoadedModel, tmp_path: Path) -> None:
    held = MemoryStore()
    job(model).run(held, Silent())
    store = ShardStore(tmp_path)
    with write_behind(store) as write:
        for index in range(2):
            shard = held.read(index)
            write(index, Shard(shard.prompts, np.asarray(shard.pooled), shard.values))
    for index in range(2):
        np.testing.assert_array_equal(
            store.read(index).pooled[1], np.asarray(held.read(index).pooled[1])
        )


def test_an_error_in_writing_is_not_lost() -> None:
    class Full(MemoryStore):
        def write(self, index: int, shard: Shard) -> None:
            raise OSError("no space")

    nothing = Shard(np.arange(1), np.zeros((1, 1, 1, 1)), {})
    for count in (1, 2):
        with pytest.raises(OSError, match="no space"), write_behind(Full()) as write:
            list(map(write, range(count), [nothing] * count))


def test_which_entropy_is_a_setting_of_the_run() -> None:
    assert make_config().options.entropy == "exact"
    assert make_config(entropy="approximate").as_dict()["options"]["entropy"] == "approximate"
    with pytest.raises(UnknownNameError, match="exact"):
        make_config(entropy="rough")


def test_kernels_that_a_profile_needs_are_compiled_ahead(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    encode_module.compile_kernels(job(model))  # on a CPU, none
    use_kernels(monkeypatch)
    monkeypatch.setattr(eigenvalues, "shared_memory", lambda index: 232_448)
    monkeypatch.setattr(ahead, "architecture_of", lambda index: "sm_90")
    monkeypatch.setattr(ahead, "compile_ahead", lambda sources, architecture: asked.extend(sources))
    encode_module.compile_kernels(job(model))
    assert all("__global__" in source for source in asked)
    assert sum("small_eigenvalues" in source for source in asked) >= 1
    assert any("token_gram" in source for source in asked)
    of_passes = ("\nrotate(", "\nlayer_norm(")
    assert not any(
        name in source for name in of_passes for source in asked
    )  # these are for half precision
    halves = replace(model, module=copy.deepcopy(model.module).to(torch.bfloat16))
    encode_module.compile_kernels(job(halves))
    assert all(any(name in source for source in asked) for name in of_passes)
