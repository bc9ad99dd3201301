"""Many models in one sweep; `make faults` takes a hundred."""

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
