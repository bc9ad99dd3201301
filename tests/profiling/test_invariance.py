"""The same numbers for any batch size, order of texts and number of threads; the same run twice
from one seed."""

from __future__ import annotations

import random

import pandas as pd
import pytest
import torch

from layerscope.profiling import encode, profile
from tests.profiling.support import assert_same_numbers
from tests.tiny import tiny_model

OPTIONS = {"max_length": 40, "views": 2, "permutations": 4}


LIKE_THEM = (
    "gpt2",
    "gpt_neox",
    "roberta",
)  # in every test run: one that reads on, one that keeps a state, one that reads both ways


@pytest.mark.parametrize(
    "family",
    ["llama", "mamba", "bert", *(pytest.param(name, marks=pytest.mark.slow) for name in LIKE_THEM)],
)
def test_batch_size_and_order(family: str, texts: list[str]) -> None:
    model = tiny_model(family)
    shuffled = random.Random(1).sample(texts, len(texts))
    assert shuffled != texts
    first = profile(model, texts, batch_size=1, **OPTIONS)
    for given, size in ((texts, 7), (shuffled, 64)):
        other = profile(model, given, batch_size=size, **OPTIONS)
        assert_same_numbers(other.table, first.table)
        by_text = [
            run.prompts.sort_values(["text_key", "layer"], ignore_index=True)
            for run in (first, other)
        ]
        columns = ["text_key", "tokens", "truncated", "site", "sink_position"]
        pd.testing.assert_frame_equal(by_text[0][columns], by_text[1][columns])
        numbers = ["prompt_entropy", "curvature_sink_dropped", "sink_ratio"]
        pd.testing.assert_frame_equal(
            by_text[0][numbers], by_text[1][numbers], rtol=1e-3, atol=1e-4
        )


def test_shard_size(texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    whole = profile(model, texts, **OPTIONS)
    monkeypatch.setattr(encode, "choose_shard_size", lambda *_: 3)
    assert_same_numbers(profile(model, texts, **OPTIONS).table, whole.table)


def test_number_of_threads(texts: list[str]) -> None:
    model = tiny_model("llama")
    one = profile(model, texts, **OPTIONS)
    torch.set_num_threads(3)
    try:
        three = profile(model, texts, **OPTIONS)
    finally:
        torch.set_num_threads(1)
    assert_same_numbers(three.table, one.table)


def test_one_seed_gives_one_run(texts: list[str]) -> None:
    model = tiny_model("llama")
    first, again, other = (profile(model, texts, seed=seed, **OPTIONS) for seed in (5, 5, 6))
    pd.testing.assert_frame_equal(first.table, again.table, check_exact=True)
    pd.testing.assert_frame_equal(first.prompts, again.prompts, check_exact=True)
    moved = (first.table["value"] != other.table["value"]) & first.table["value"].notna()
    assert {"infonce", "dime", "lidar"} <= set(first.table.loc[moved, "metric"])
    assert "prompt_entropy" not in set(first.table.loc[moved, "metric"])


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("x: can't allocate memory: y")],
)
def test_running_out_of_memory_changes_no_number(error: RuntimeError, texts: list[str]) -> None:
    model = tiny_model("llama")
    whole = profile(model, texts, **OPTIONS)
    sizes: list[int] = []

    def limited(
        _module: object, args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor]
    ) -> None:
        sizes.append(len(kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]))
        if sizes[-1] > 3:
            raise error

    handle = model.anatomy.blocks[1].register_forward_pre_hook(limited, with_kwargs=True)
    try:
        halved = profile(model, texts, **OPTIONS)
    finally:
        handle.remove()
    assert max(sizes) > 3
    assert (
        sum(size for size in sizes if size <= 3) == len(texts) * 3
    )  # prompts and two views: none lost, none twice
    assert_same_numbers(halved.table, whole.table)
    assert list(halved.prompts["prompt"]) == list(whole.prompts["prompt"])
