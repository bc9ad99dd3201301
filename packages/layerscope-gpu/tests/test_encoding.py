"""A run whose shards stay on a GPU begins before all texts are tokenized, and reads each of them
once; here on the CPU."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.kernels import use_kernels
from tests.tiny import tiny_model

from layerscope.capture import Reducer
from layerscope.data import Corpus
from layerscope.errors import DataError, NonFiniteStatesError
from layerscope.models import LoadedModel, inputs
from layerscope.models.inputs import ItemReader, ReadSettings, TextReader, ViewSettings
from layerscope.profiling import encode
from layerscope.profiling import job as job_module
from layerscope.profiling.config import make_config
from layerscope.profiling.encode import EncodedShard, ProfileTask, make_plan
from layerscope.profiling.job import run_profile
from layerscope.profiling.run import Profile
from layerscope.profiling.tables import SiteEstimator, measure_sites
from layerscope.progress import Silent
from layerscope_gpu import encoding, measuring
from layerscope_gpu.encoding import (
    DeviceEncoder,
    EarlyPlanner,
    Prefetcher,
    compile_for_profile,
    write_behind,
)

TEXTS = [f"Text {i} has {'some more ' * (i % 7)}words." for i in range(50)]
SIZE = 4


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny_model("gpt_neox")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small shards; profiles take the way of a GPU."""
    monkeypatch.setattr(encode, "choose_shard_size", lambda *_: SIZE)
    monkeypatch.setattr(encoding, "compile_for_profile", lambda task: None)
    ways = SimpleNamespace(
        encode_in_memory=encoding.encode_in_memory,
        measure_sites=lambda estimator, count, device: measure_sites(estimator, count),
    )
    monkeypatch.setattr(job_module, "accelerator", SimpleNamespace(on=lambda device: ways))


def make_job(model: LoadedModel, texts: list[str] = TEXTS, **settings: Any) -> ProfileTask:
    config = make_config(max_length=24, permutations=2, **settings)
    return ProfileTask(model, Corpus.of(texts), config)


def run_held(task: ProfileTask) -> Profile:
    """Run a profile whose vectors stay in memory."""
    return run_profile(task, None, Silent())[0]


def run_stored(task: ProfileTask, folder: Path) -> Profile:
    """Run a profile whose vectors go through a folder."""
    return run_profile(task, folder, Silent())[0]


def assert_same(one: Profile, other: Profile) -> None:
    # Which prompts share a batch decides the last digits.
    pd.testing.assert_frame_equal(one.prompts, other.prompts, rtol=1e-7)
    keys = ["site", "metric", "normalization", "sink", "n"]
    pd.testing.assert_frame_equal(one.table[keys], other.table[keys])
    for column in ("value", "ci_low", "ci_high"):
        np.testing.assert_allclose(
            other.table[column], one.table[column], rtol=2e-3, atol=2e-5, err_msg=column
        )


def open_texts(model: LoadedModel, texts: list[str]) -> ItemReader:
    return model.open_items(Corpus.of(texts), ReadSettings(24))


# the plan


def test_the_first_shard_is_that_of_the_whole_plan(model: LoadedModel) -> None:
    with EarlyPlanner(open_texts(model, TEXTS), SIZE) as made:
        first, whole = made.first(), made.plan()
    assert first is not None
    assert first.rows is not None
    assert whole.rows is not None
    np.testing.assert_array_equal(first.shards[0], whole.shards[0])
    plain = make_plan(open_texts(model, TEXTS), SIZE)
    assert sorted(np.concatenate(whole.shards)) == sorted(np.concatenate(plain.shards))
    for name in ("keys", "lengths", "truncated"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(plain, name))
    assert plain.rows is not None
    for i in range(len(TEXTS)):
        np.testing.assert_array_equal(whole.rows[i], plain.rows[i])
    for i in first.shards[0]:
        np.testing.assert_array_equal(first.rows[i], plain.rows[i])


def test_the_first_shard_does_not_depend_on_the_order_of_the_texts(model: LoadedModel) -> None:
    turned = TEXTS[::-1]
    with (
        EarlyPlanner(open_texts(model, TEXTS), SIZE) as one,
        EarlyPlanner(open_texts(model, turned), SIZE) as other,
    ):
        for a, b in zip(one.plan().shards, other.plan().shards, strict=True):
            assert [TEXTS[i] for i in a] == [turned[i] for i in b]


def test_with_views_the_first_items_are_a_small_shard_and_full_ones(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "_FIRST_ITEMS", (7, 7))
    monkeypatch.setattr(encoding, "_FIRST_VIEWS", (2, 3))
    with EarlyPlanner(open_texts(model, TEXTS), SIZE, per_batch=1) as made:
        first, whole = made.first(), made.plan()
    assert first is not None
    assert [len(shard) for shard in first.shards] == [
        2,
        3,
        4,
        4,
        1,
    ]  # twice as many as without views
    for early, late in zip(first.shards, whole.shards, strict=False):
        np.testing.assert_array_equal(early, late)
    assert sorted(np.concatenate(whole.shards)) == list(range(len(TEXTS)))


def test_no_shard_is_larger_than_memory_allows(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "_FIRST_ITEMS", (7, 7))
    for per_batch in (
        0,
        30,
    ):  # of a wide model fewer items fit into a shard than the smallest of the first ones holds
        with EarlyPlanner(open_texts(model, TEXTS), SIZE, per_batch=per_batch) as made:
            assert made.early
            assert max(len(shard) for shard in made.plan().shards) == SIZE


def test_few_texts_are_planned_whole(model: LoadedModel) -> None:
    with EarlyPlanner(open_texts(model, TEXTS[: 2 * SIZE]), SIZE) as made:
        assert made.first() is None
        assert not made.early
        assert len(made.plan().shards) == 2


def test_texts_without_tokens_are_left_out_or_refused() -> None:
    model = tiny_model("gpt_neox")
    model._tokenizer.backend_tokenizer.post_processor = None  # nothing is added to an empty text
    with EarlyPlanner(open_texts(model, [*TEXTS, "", ""]), SIZE) as made:
        whole = made.plan()
        assert (whole.no_tokens, whole.n_prompts) == (2, len(TEXTS))
    with (
        EarlyPlanner(open_texts(model, [""] * 40), SIZE) as made,
        pytest.raises(DataError, match="no token in any of the 40"),
    ):
        made.plan()


def test_many_tokens_are_not_kept(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = run_held(make_job(model, metrics=["prompt_entropy"]))
    monkeypatch.setattr(inputs, "_MAX_TOKENS", 200)
    with EarlyPlanner(open_texts(model, TEXTS), SIZE) as made:
        assert made.early
        assert made.plan().rows is None
    assert_same(kept, run_held(make_job(model, metrics=["prompt_entropy"])))


# the run


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each text goes through the tokenizer, but for the few that are tried."""
    seen: Counter[str] = Counter()
    survey = TextReader.survey

    def note(reader: TextReader, numbers: np.ndarray, *given: Any) -> Any:
        seen.update(reader.texts[i] for i in numbers.tolist())
        return survey(reader, numbers, *given)

    monkeypatch.setattr(TextReader, "survey", note)
    return seen


def test_each_text_is_tokenized_once(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = counted(monkeypatch)
    run_held(make_job(model, metrics=["prompt_entropy", "dataset_entropy"]))
    assert seen == Counter(TEXTS)


def test_the_first_shard_is_run_before_the_others_are_tokenized(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, survey, begun, seen = DeviceEncoder.run_items_of, TextReader.survey, [], []

    def wait_for_the_first(*given: Any) -> Any:
        if seen:  # the others: not before the first shard has gone through the model
            assert run.wait(20)
        seen.append(given[1])
        return survey(*given)

    def note(self: DeviceEncoder, plan: Any, shards: list[np.ndarray], *given: Any) -> Any:
        out = begin(self, plan, shards, *given)
        begun.extend(shards)
        run.set()
        return out

    run = threading.Event()
    monkeypatch.setattr(TextReader, "survey", wait_for_the_first)
    monkeypatch.setattr(DeviceEncoder, "run_items_of", note)
    run_held(make_job(model, metrics=["dataset_entropy"]))
    assert [len(part) for part in seen] == [SIZE, len(TEXTS) - SIZE]
    np.testing.assert_array_equal(begun[0], seen[0])
    assert sorted(np.concatenate(begun)) == list(range(len(TEXTS)))


@pytest.mark.parametrize("sites", [None, ["block.*", "block.1.*"]])
def test_the_same_tables(model: LoadedModel, tmp_path: Any, sites: list[str] | None) -> None:
    metrics = ["prompt_entropy", "dataset_entropy", "infonce", "curvature"]
    plain = run_stored(make_job(model, metrics=metrics, views=2, sites=sites), tmp_path)
    held = run_held(make_job(model, metrics=metrics, views=2, sites=sites))
    assert_same(plain, held)
    assert held.manifest["counts"] == plain.manifest["counts"]
    assert held.manifest["conventions"] == plain.manifest["conventions"]


def test_shards_on_a_disk_are_the_same(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"metrics": ["prompt_entropy", "dataset_entropy", "infonce"], "views": 2}
    plain = run_stored(make_job(model, **settings), tmp_path / "plain")
    ways = SimpleNamespace(encode_shards=encoding.encode_shards)
    monkeypatch.setattr(encode, "accelerator", SimpleNamespace(on=lambda device: ways))
    ahead_of = run_stored(make_job(model, **settings), tmp_path / "ahead")
    assert_same(plain, ahead_of)
    assert ahead_of.manifest["counts"] == plain.manifest["counts"]


def test_prompts_are_run_while_views_are_made(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    ready = {"yet": False}
    begin, run_views = DeviceEncoder.run_items_of, DeviceEncoder.run_views_of
    monkeypatch.setattr(encoding, "MOST_PENDING", 2)
    monkeypatch.setattr(encoding, "_FIRST_ITEMS", (SIZE // 2, SIZE // 2))
    monkeypatch.setattr(Prefetcher, "has_views", lambda self, shard: ready["yet"])
    monkeypatch.setattr(
        DeviceEncoder,
        "run_items_of",
        lambda *given: (order.extend(["prompts"] * len(given[2])), begin(*given))[1],
    )
    monkeypatch.setattr(
        DeviceEncoder, "run_views_of", lambda *given: (order.append("views"), run_views(*given))[1]
    )
    job = make_job(model, TEXTS[:20], metrics=["infonce"], views=2)
    never = run_held(job)
    assert order[:6] == ["prompts"] * 3 + ["views"] * 2 + ["prompts"]
    assert Counter(order) == {"prompts": 5, "views": 5}
    order.clear()
    ready["yet"] = True
    always = run_held(job)
    assert order == ["prompts", "views"] + (["prompts"] * 2 + ["views"] * 2) * 2
    np.testing.assert_array_equal(never.table["value"], always.table["value"])


def test_the_bar_counts_every_text_once(model: LoadedModel) -> None:
    class Bar(Silent):
        total = done = 0

        def begin(self, label: str, total: int, done: int = 0) -> None:
            if label.endswith("texts"):
                Bar.total, Bar.done = total, done

        def advance(self, units: int) -> None:
            Bar.done += units

    job = make_job(model, metrics=["infonce"], views=2)
    encoding.encode_in_memory(job, Bar())
    assert Bar.done == Bar.total == 3 * len(TEXTS)


def test_sites_are_measured_together(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metrics of a GPU, walked on the CPU; without room for all, in smaller groups."""
    settings: dict[str, Any] = {"views": 3}
    plain = run_stored(make_job(model, TEXTS[:9], **settings), tmp_path)
    ways = SimpleNamespace(
        encode_in_memory=encoding.encode_in_memory,
        measure_sites=measuring.measure_sites,
    )
    monkeypatch.setattr(job_module, "accelerator", SimpleNamespace(on=lambda device: ways))
    monkeypatch.setattr(measuring, "sites_together", lambda estimator, device: 2)
    assert_same(plain, run_held(make_job(model, TEXTS[:9], **settings)))
    own, tried = measuring.measure_group, []

    def without_room_for_two(estimator: Any, indices: range, device: torch.device) -> Any:
        tried.append(len(indices))
        if len(indices) > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return own(estimator, indices, device)

    monkeypatch.setattr(measuring, "measure_group", without_room_for_two)
    assert_same(plain, run_held(make_job(model, TEXTS[:9], **settings)))
    assert tried == [2] + [1] * len(plain.table["site"].unique())


def test_means_are_taken_beside_the_gpus_work(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    start, means = measuring.start_work, SiteEstimator.estimate_means

    def started(*given: Any) -> Any:
        done.append("start")
        return [
            (names, lambda wait=wait: (done.append("wait"), wait())[1])
            for names, wait in start(*given)
        ]

    def noted(*given: Any) -> Any:
        done.append("means")
        return means(*given)

    monkeypatch.setattr(measuring, "start_work", started)
    monkeypatch.setattr(SiteEstimator, "estimate_means", noted)
    monkeypatch.setattr(measuring, "sites_together", lambda estimator, device: 2)
    ways = SimpleNamespace(
        encode_in_memory=encoding.encode_in_memory,
        measure_sites=measuring.measure_sites,
    )
    monkeypatch.setattr(job_module, "accelerator", SimpleNamespace(on=lambda device: ways))
    run_held(make_job(model, TEXTS[:9], metrics=["curvature", "dataset_entropy"]))
    assert done[:5] == ["start", "means", "means", "wait", "start"]


def test_states_that_are_not_finite_are_still_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt_neox")
    reduce = Reducer.reduce

    def broken(self: Reducer, *given: Any) -> Any:
        kept = reduce(self, *given)
        pooled = kept.pooled.clone()
        pooled[2, 0] = torch.inf
        return replace(kept, pooled=pooled)

    monkeypatch.setattr(Reducer, "reduce", broken)
    with pytest.raises(NonFiniteStatesError, match=r"infinite values in the states at block\.1 "):
        run_held(make_job(model, metrics=["dataset_entropy"]))


def test_views_read_ahead_of_a_plan_that_grows(model: LoadedModel) -> None:
    views, reader = ViewSettings(2), open_texts(model, TEXTS)
    with EarlyPlanner(reader, SIZE) as made:
        first = made.first()
        assert first is not None
        with Prefetcher(reader, first, first.shards, views) as ahead:
            whole = made.plan()
            ahead.add(whole, whole.shards[1:])
            for shard in whole.shards:
                assert [list(ids) for ids in ahead.rows(shard)] == model.tokenize(
                    [TEXTS[i] for i in shard], 24
                ).ids
            for shard in whole.shards:
                assert len(ahead.views(shard)) == 2 * len(shard)
            assert not ahead._views
            assert not ahead._rows


def test_prefetching_reads_the_same(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerscope.models.inputs._MIN_VIEWS_IN_POOL", 1)
    settings, reader = ViewSettings(3), open_texts(model, TEXTS)
    plan = make_plan(reader, 4)
    assert plan.rows is not None
    with Prefetcher(reader, plan, plan.shards, settings) as ahead:
        for shard in plan.shards:
            rows = ahead.rows(shard)
            assert [list(ids) for ids in rows] == model.tokenize([TEXTS[i] for i in shard], 24).ids
            views, alone = (
                ahead.views(shard),
                open_texts(model, TEXTS).read_views(shard, rows, settings),
            )
            assert [list(ids) for ids in views] == [list(ids) for ids in alone]


def test_an_error_in_writing_is_not_lost() -> None:
    def full(shard: EncodedShard) -> None:
        raise OSError("no space")

    nothing = EncodedShard(np.arange(1), np.zeros((1, 1, 1, 1)), {})
    for count in (1, 2):
        with pytest.raises(OSError, match="no space"), write_behind(full) as write:
            list(map(write, [nothing] * count))


def test_kernels_that_a_profile_needs_are_compiled_ahead(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    use_kernels(monkeypatch)
    monkeypatch.setattr(encoding, "architecture_of", lambda index: "sm_90")
    monkeypatch.setattr(encoding, "compile_ahead", lambda sources, _: asked.extend(sources))
    compile_for_profile(make_job(model))
    assert all("__global__" in source for source in asked)
    assert sum("small_eigenvalues" in source for source in asked) >= 1
    assert any("token_gram" in source for source in asked)
    of_passes = ("\nrotate(", "\nlayer_norm(")
    assert not any(
        name in source for name in of_passes for source in asked
    )  # these are for half precision
    halves = replace(model, module=copy.deepcopy(model.module).to(torch.bfloat16))
    compile_for_profile(make_job(halves))
    assert all(any(name in source for source in asked) for name in of_passes)


@pytest.mark.parametrize("problem", [OSError("no driver"), RuntimeError("no compiler")])
def test_a_gpu_without_a_compiler_is_no_reason_to_fail(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    def refuse(index: int) -> str:
        raise problem

    use_kernels(monkeypatch)
    monkeypatch.setattr(encoding, "architecture_of", refuse)
    compile_for_profile(make_job(model))
