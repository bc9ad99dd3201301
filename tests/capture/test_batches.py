"""Batches: padded rightly, within the budget, each text once, and halved where memory runs out."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope.capture import batches, fits_on_device, make_batch, plan_batches, run_batches
from layerscope.errors import LayerscopeError

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=60)


def test_make_batch_pads_on_the_right() -> None:
    right = make_batch([[7, 8, 9], [5]], 0)
    assert right.input_ids.tolist() == [[7, 8, 9], [5, 0, 0]]
    assert right.mask is not None
    assert right.mask.tolist() == [[True, True, True], [True, False, False]]
    assert right.lengths == [3, 1]


def test_no_mask_where_nothing_is_padded() -> None:
    assert make_batch([[1, 2], [3, 4]], 0).mask is None


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 200), st.one_of(st.none(), st.integers(1, 9)))
def test_plans_hold_every_text_once_within_the_budget(
    lengths: list[int], tokens: int, most: int | None
) -> None:
    batches = plan_batches(lengths, tokens, most)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        size = len(batch) * max(lengths[i] for i in batch)
        assert size <= tokens or len(batch) == 1
        assert most is None or len(batch) <= most
    longest = [max(lengths[i] for i in batch) for batch in batches]
    assert longest == sorted(longest, reverse=True)  # memory that will not do is found out at once


def test_plans_fill_the_budget() -> None:
    assert plan_batches([5] * 8, 20) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert plan_batches([5] * 4, 20, most=3) == [[0, 1, 2], [3]]
    assert plan_batches([50, 1], 20) == [[0], [1]]


ERRORS: dict[str, Callable[[], BaseException]] = {
    "cuda": lambda: torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "cpu": lambda: RuntimeError(
        "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried"
    ),
    "python": lambda: MemoryError(),
    "mps": lambda: RuntimeError("MPS backend out of memory (MPS allocated: 8 GB)"),
}


@pytest.mark.parametrize("kind", ERRORS)
@settings(max_examples=15, deadline=None)
@given(lengths=LENGTHS, tokens=st.integers(1, 300), fits=st.integers(1, 8))
def test_halving_neither_loses_nor_repeats_work(
    kind: str, lengths: list[int], tokens: int, fits: int
) -> None:
    done: list[int] = []
    tries: list[int] = []

    def process(batch: list[int]) -> None:
        tries.append(len(batch))
        if len(batch) > fits:
            raise ERRORS[kind]()
        done.extend(batch)

    with patch.object(
        batches.gc, "collect"
    ):  # slow in a process this large, and there is nothing to collect
        worked = run_batches(lengths, process, tokens)
    assert sorted(done) == list(range(len(lengths)))
    assert sum(size for size in tries if size <= fits) == len(done)
    assert worked <= tokens or max(tries) == 1


def test_the_smaller_budget_is_kept() -> None:
    tries: list[int] = []

    def process(batch: list[int]) -> None:
        tries.append(len(batch))
        if len(batch) > 4:
            raise ERRORS["cuda"]()

    assert run_batches([10] * 64, process, 160) == 40
    assert tries[:3] == [16, 8, 4]
    assert max(tries[2:]) == 4  # found out once, not for every batch again
    again: list[int] = []
    run_batches([10] * 8, lambda batch: again.append(len(batch)), 40)
    assert again == [4, 4]


def test_one_text_that_does_not_fit_is_a_clear_error() -> None:
    def process(batch: list[int]) -> None:
        if 2 in batch:
            raise ERRORS["cpu"]()

    with pytest.raises(
        LayerscopeError,
        match=r"out of memory on a single text of 900 tokens\. Use a smaller max_length=",
    ):
        run_batches([10, 20, 900, 30], process, 4096)


def test_other_errors_pass_through_at_once() -> None:
    tries: list[int] = []

    def process(batch: list[int]) -> None:
        tries.append(len(batch))
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        run_batches([5] * 4, process, 100)
    assert tries == [4]


def test_vectors_wait_on_a_gpu_alone_and_where_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "free_memory", lambda device: 1000)
    assert not fits_on_device(torch.device("cpu"), 1, 1)
    assert fits_on_device(torch.device("cuda"), 112, 1)
    assert not fits_on_device(torch.device("cuda"), 113, 1)
