"""The way a profile takes on a GPU (reading ahead, shards on the device, sites together), walked on
the CPU: the same tables."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from layerscope.capture import Reducer, reduce
from layerscope.capture.reduce import LaterTokens
from layerscope.data import Corpus
from layerscope.errors import UnknownNameError
from layerscope.forward import Prefetcher, choose_shard_size, items_per_batch, make_plan, read_rows
from layerscope.metrics.options import Options
from layerscope.metrics.samples import _Vectors
from layerscope.models import LoadedModel
from layerscope.models.inputs import ItemReader, ReadSettings, ViewSettings
from layerscope.profiling import Profile, encoder
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


class Compiling:
    """A kernel that is ready when somebody has looked so often, and how much waited for it."""

    def __init__(self, looks: float, monkeypatch: pytest.MonkeyPatch, room: int = 2**30) -> None:
        self.looks, self.put_off = looks, 0
        begin = LaterTokens.__init__
        monkeypatch.setattr(Reducer, "_in_parts", lambda *_: False)  # a CPU has none to wait for
        monkeypatch.setattr(reduce, "is_entropy_ready", self.is_ready)
        monkeypatch.setattr(reduce, "room_for_matrices", lambda device: room)
        monkeypatch.setattr(encoder, "room_while_compiling", lambda device, waiting: room - waiting)

        def note(
            later: LaterTokens, waiting: object, options: Options, solve: Callable[[], torch.Tensor]
        ) -> None:
            def solve_late() -> torch.Tensor:
                self.put_off += 1
                return solve()

            begin(later, waiting, options, solve_late)  # type: ignore[arg-type]

        monkeypatch.setattr(LaterTokens, "__init__", note)

    def is_ready(self, matrices: torch.Tensor, options: Options) -> bool:
        self.looks -= 1
        return self.looks < 0


@pytest.mark.parametrize(("looks", "put_off"), [(0, 0), (1, 1), (5, 3), (math.inf, 3)])
@pytest.mark.parametrize("views", [0, 3])
def test_token_measures_are_put_off_while_their_kernel_is_compiled(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, looks: float, put_off: int, views: int
) -> None:
    metrics = ["prompt_entropy", "curvature", "sink_ratio", "dataset_entropy"]
    settings = make_config(
        max_length=24, views=views, metrics=[*metrics, *(["infonce"] if views else [])]
    )
    want = Job(model, Corpus.of(TEXTS), settings).run(MemoryStore(), Silent())
    compiling = Compiling(looks, monkeypatch)
    got = Job(model, Corpus.of(TEXTS), settings, batch_size=4).run(MemoryStore(), Silent())
    assert compiling.put_off == put_off
    assert_same(want, got)


def test_not_more_is_put_off_than_there_is_room_for(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = job(model, metrics=["prompt_entropy"]).run(MemoryStore(), Silent())
    compiling = Compiling(math.inf, monkeypatch, room=1)
    assert_same(want, job(model, metrics=["prompt_entropy"]).run(MemoryStore(), Silent()))
    assert compiling.put_off == 0


def test_after_memory_ran_out_what_was_put_off_is_computed_first(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_config(max_length=24, metrics=["prompt_entropy", "dataset_entropy"])
    want = Job(model, Corpus.of(TEXTS), settings).run(MemoryStore(), Silent())
    compiling, own, computed = Compiling(math.inf, monkeypatch), Reducer.reduce, []

    def full_once(self: Reducer, *given: object, **more: object) -> object:
        computed.append(compiling.put_off)
        if len(computed) == 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return own(self, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Reducer, "reduce", full_once)
    got = Job(model, Corpus.of(TEXTS), settings, batch_size=4).run(MemoryStore(), Silent())
    assert computed[:3] == [0, 0, 1]  # the first batch's, before a half of the second is tried
    assert_same(want, got)


@pytest.mark.usefixtures("as_on_gpu")
def test_what_was_put_off_outlives_memory_that_ran_out(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        job_module, "choose_shard_size", lambda *_: 9
    )  # one shard, which the tables ask for
    want = job(model).run(MemoryStore(), Silent())
    compiling, own, tried = Compiling(math.inf, monkeypatch), LaterTokens.__init__, []

    def full_once(later: LaterTokens, *given: object) -> None:
        own(later, *given)  # type: ignore[arg-type]
        solve = later.solve

        def solve_again() -> torch.Tensor:
            tried.append(solve)
            if len(tried) == 1:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            return solve()

        later.solve = solve_again

    monkeypatch.setattr(LaterTokens, "__init__", full_once)
    got = job(model).run(MemoryStore(), Silent())
    assert (len(tried), compiling.put_off) == (2, 1)
    assert_same(want, got)


def test_while_kernels_compile_a_quarter_of_free_memory_may_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    monkeypatch.setattr(reduce, "total_memory", lambda device: 1000)
    monkeypatch.setattr(reduce, "free_memory", lambda device: 800)
    assert reduce.room_while_compiling(gpu, 0) == reduce.room_for_matrices(gpu) == 60
    assert reduce.room_while_compiling(gpu, 50) == 200
    monkeypatch.setattr(reduce, "free_memory", lambda device: 20)
    assert [reduce.room_while_compiling(gpu, waiting) for waiting in (50, 58)] == [10, 5]
    assert reduce.room_while_compiling(cpu, 0) == 0


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
