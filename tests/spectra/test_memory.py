"""A bound on a GPU's memory: what is left is told by it, torch is held to it, and it ends with its
block."""

from __future__ import annotations

import pytest
import torch

from layerscope.capture import batches
from layerscope.capture.batches import token_budget
from layerscope.core.options import EngineOptions, parse_size
from layerscope.engines import LocalEngine, engine_in_use
from layerscope.errors import LayerscopeError
from layerscope.spectra.execution import free_memory, memory_bound, total_memory

GB = 2**30
DEVICE = torch.device("cuda", 0)


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A GPU of 100 GB, 90 of them free: torch holds 8 and uses 5."""
    found: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (90 * GB, 100 * GB))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: 5 * GB)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device=None: 8 * GB)
    monkeypatch.setattr(batches, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, index: found.append(share)
    )
    return found


def test_what_is_left(shares: list[float]) -> None:
    assert free_memory(DEVICE) == 90 * GB
    before = token_budget(DEVICE, 4096)
    with memory_bound(9 * GB):
        assert free_memory(DEVICE) == 4 * GB
        assert total_memory(DEVICE) == 9 * GB
        assert token_budget(DEVICE, 4096) < before / 10
        with memory_bound(7 * GB):
            assert free_memory(DEVICE) == 2 * GB
        assert free_memory(DEVICE) == 4 * GB
    assert total_memory(DEVICE) == 100 * GB
    assert shares == [0.09, 0.07, 0.09, 1.0]


def test_a_batch_is_a_whole_number_of_rounds(
    shares: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert token_budget(DEVICE, 1024) == 16 * 32 * 132  # of an H200
    with memory_bound(7 * GB):
        assert token_budget(DEVICE, 1024) == 3 * 32 * 132  # 16,384 would fit
    with memory_bound(5 * GB + 2**28):
        assert token_budget(DEVICE, 1024) == 2048  # less than a round
    monkeypatch.setattr(batches, "multiprocessors", lambda device: 108)
    assert token_budget(DEVICE, 1024) == 19 * 32 * 108 >= batches.GPU_TOKENS


def test_the_bound_ends_whatever_happens(shares: list[float]) -> None:
    with pytest.raises(ValueError, match="anything"), memory_bound(9 * GB):
        raise ValueError("anything")
    assert shares[-1] == 1.0
    assert total_memory(DEVICE) == 100 * GB


def test_an_engine_has_it(shares: list[float]) -> None:
    for engine in (None, "local", LocalEngine()):
        with engine_in_use(EngineOptions.take({"engine": engine, "memory": "6GB"})):
            assert total_memory(DEVICE) == 6 * GB
    with engine_in_use(EngineOptions("local")):
        assert total_memory(DEVICE) == 100 * GB


def test_what_cannot_be(shares: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(LayerscopeError, match=r"allows 4 GB, and 5 GB are in use"),
        memory_bound(4 * GB),
    ):
        pass
    with pytest.raises(LayerscopeError, match="workers of a cluster"):
        EngineOptions.take({"engine": "ray", "memory": "6GB"})
    with pytest.raises(LayerscopeError, match=r"such as 10GB, not 'much'"):
        EngineOptions.take({"memory": "much"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(LayerscopeError, match="none can be used here"), memory_bound(9 * GB):
        pass
    assert parse_size(5000) == 5000
