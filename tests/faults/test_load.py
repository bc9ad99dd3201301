"""Many models in one sweep, many texts in one store; `make faults` takes a hundred and a
million."""

from __future__ import annotations

import os

import pytest

from tests.faults.support import run_tool


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is read from /proc")
def test_a_sweep_over_many_models() -> None:
    found = run_tool("load", "models", 8, 0)
    assert found["defects"] == []
    assert found["inputs"] == 8


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is read from /proc")
def test_a_store_of_many_texts() -> None:
    found = run_tool("load", "store", 20_000, 0)
    assert found["defects"] == []
    assert found["open_files"] < 300  # of the 1,024 that a process may have open


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is read from /proc")
def test_a_profile_of_many_texts() -> None:
    found = run_tool("load", "profile", 3000, 0)
    assert found["defects"] == []
    assert found["inputs"] == 3000
