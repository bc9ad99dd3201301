"""What a GPU changes in the plan of a profile: shards, batches, settings."""

from __future__ import annotations

import pytest

from layerscope.data import Corpus
from layerscope.models import LoadedModel
from layerscope.models.inputs import ItemReader, ReadSettings
from layerscope.profiling.encode import choose_shard_size, items_per_batch, make_plan, read_rows
from tests.tiny import tiny_model

TEXTS = [f"The {i}th text has {'some more ' * (i % 4)}words, and then it ends." for i in range(9)]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny_model("llama")


def open_texts(model: LoadedModel) -> ItemReader:
    return model.open_items(Corpus.of(TEXTS), ReadSettings(24))


def test_ids_are_made_again_where_they_would_take_memory(model: LoadedModel) -> None:
    reader = open_texts(model)
    kept = make_plan(reader, 4)
    reader.most_kept = 30
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
    monkeypatch.setattr("layerscope.profiling.encode.token_budget", lambda device, width: 67584)
    assert items_per_batch(model, 128, 0) == 0
    assert items_per_batch(model, 128, 16) == items_per_batch(model, None, 16) == 33
    assert items_per_batch(model, 8192, 16) == 1  # longer than a batch
    assert items_per_batch(model, 128, 16, most=64) == 4
