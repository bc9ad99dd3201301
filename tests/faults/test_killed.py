"""A few kills in every test run; `make faults` does hundreds of all commands."""

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
