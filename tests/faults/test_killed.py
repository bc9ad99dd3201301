"""A few kills and a race in every test run; `make faults` does hundreds of all commands."""

from __future__ import annotations

import os

import pytest

from tests.faults.support import run_tool

SEED = int(os.environ.get("LAYERSCOPE_FAULTS_SEED", "0"))
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the killer forks")


def test_killed_runs_end_as_if_nothing_had_been() -> None:
    found = run_tool("killer", "profile", 3, SEED)
    assert found["kills"] >= 3
    assert found["wrong"] == []
    assert found["errors"] == []
    assert found["left"] == []


def test_runs_killed_for_want_of_memory_end_as_if_nothing_had_been() -> None:
    found = run_tool("memory", "profile", 2, SEED)
    if "impossible" in found:
        pytest.skip(f"no control group can be made here: {found['impossible']}")
    assert found["kills"] >= 2
    assert found["by_the_kernel"] == found["kills"]
    assert found["wrong"] == found["errors"] == found["left"] == []


@pytest.mark.slow
def test_a_race() -> None:
    found = run_tool("killer", "race", 2, SEED)
    assert found["races"] == 2
    assert found["wrong"] == []
    assert found["errors"] == []
