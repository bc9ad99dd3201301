"""A few kills and a race in every test run; `make faults` does hundreds of all commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONG = int(os.environ.get("LAYERSCOPE_FAULTS", "0"))
COMMANDS = ("profile", "evaluate", "probe", "study", "sweep", "export", "improve")


def run(name: str, count: int) -> dict[str, object]:
    """What the killer found."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "tests.faults.killer", name, str(count), os.environ.get("LAYERSCOPE_FAULTS_SEED", "0")]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the killer forks")
@pytest.mark.parametrize("name", COMMANDS if LONG else ("profile",))
def test_killed_runs_end_as_if_nothing_had_been(name: str) -> None:
    found = run(name, 100 if LONG else 2)
    assert found["wrong"] == []
    assert found["errors"] == []
    assert found["left"] == []


@pytest.mark.skipif(not LONG or not hasattr(os, "fork"), reason="`make faults` runs it")
def test_races() -> None:
    found = run("race", 40)
    assert found["wrong"] == []
    assert found["errors"] == []
