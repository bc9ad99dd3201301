"""A run killed while it encodes, and again while its workers score, ends with the same table and
repeats next to nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from layerscope import evaluate
from tests.evaluation.support import write_tasks
from tests.tiny import tiny_model

ROOT = Path(__file__).resolve().parents[2]
READOUTS = [
    f"plain/{pooling}/raw/keep/{centering}"
    for pooling in ("mean", "wmean", "max")
    for centering in ("none", "corpus")
]
TEXTS, JOBS = 200, 24


@pytest.fixture
def runner() -> Iterator[subprocess.Popen[str]]:
    """A process that starts runs."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    command = [sys.executable, "-m", "tests.evaluation.interrupted"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, cwd=ROOT, **pipes) as process:
        yield process
        process.kill()


def run_and_kill(
    runner: subprocess.Popen[str],
    given: dict[str, Any],
    notes: Path,
    stop: str,
    after: int,
    how: int = signal.SIGKILL,
) -> None:
    """Start a run, wait until it has done so much, and end it, without warning where `how` does not
    say otherwise."""
    assert runner.stdin is not None
    assert runner.stdout is not None
    mark = notes.with_suffix(f".{stop}")
    environment = {"NOTES": str(notes), "MARK": str(mark), "STOP": stop, "AFTER": str(after)}
    runner.stdin.write(json.dumps({**given, "environment": environment}) + "\n")
    runner.stdin.flush()
    process = int(runner.stdout.readline())
    while not mark.exists():
        assert not is_gone(process)
        time.sleep(0.05)
    os.kill(process, how)
    assert int(runner.stdout.readline()) == -how


def noted(notes: Path, what: str) -> list[int]:
    """The process of each piece of work."""
    words = [line.split() for line in notes.read_text(encoding="utf-8").splitlines()]
    return [int(process) for kind, process in words if kind == what]


def is_gone(process: int) -> bool:
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow
def test_killed_while_encoding_and_while_scoring(
    runner: subprocess.Popen[str], tmp_path: Path
) -> None:
    data = write_tasks(tmp_path / "data", pairs=TEXTS, texts=TEXTS)
    notes = tmp_path / "notes"
    given: dict[str, Any] = {
        "tasks": ["Pairs"], "out": str(tmp_path / "run"), "data_dir": str(data), "store": str(tmp_path / "store"),
        "readouts": READOUTS, "scoring_workers": 2,
    }  # fmt: skip
    run_and_kill(runner, given, notes, "text", TEXTS // 2)
    assert TEXTS // 2 <= len(noted(notes, "text")) < TEXTS
    assert not (tmp_path / "run" / "results").exists()
    run_and_kill(runner, {**given, "scoring_workers": 1}, notes, "job", JOBS // 2)
    assert (
        TEXTS <= len(noted(notes, "text")) <= 1.08 * TEXTS
    )  # a chunk that was being encoded, and one that was being written
    scorers = noted(notes, "job")
    while not all(
        is_gone(process) for process in set(scorers)
    ):  # workers do not outlive a run that was killed
        time.sleep(0.05)
    files = {
        file: file.stat().st_mtime_ns
        for file in (tmp_path / "run" / "results").rglob("*.safetensors")
    }
    assert JOBS // 4 < len(files) < JOBS
    assert len(scorers) + (JOBS - len(files)) < 1.05 * JOBS

    run = evaluate(tiny_model(), **given)
    assert run.failed == []
    assert run.manifest["counts"] == {**run.manifest["counts"], "texts": TEXTS, "encoded": 0}
    assert all(file.stat().st_mtime_ns == time_before for file, time_before in files.items())
    assert len(list((tmp_path / "run" / "results").rglob("*.safetensors"))) == JOBS

    elsewhere = {
        **given,
        "out": tmp_path / "whole",
        "store": tmp_path / "other",
        "scoring_workers": 0,
    }
    whole = evaluate(tiny_model(), **elsewhere)
    assert whole.manifest["counts"]["encoded"] == TEXTS
    # batches may differ where the run went on, so that the last digits may
    pd.testing.assert_frame_equal(run.scores, whole.scores, atol=1e-6, rtol=0)
    pd.testing.assert_frame_equal(run.gains, whole.gains, atol=1e-5, rtol=0)
    assert len(whole.scores) == JOBS


@pytest.mark.slow
def test_ctrl_c_ends_processes_in_the_middle_of_a_score(
    runner: subprocess.Popen[str], tmp_path: Path
) -> None:
    data, notes = write_tasks(tmp_path / "data", pairs=40), tmp_path / "notes"
    given: dict[str, Any] = {
        "tasks": ["Pairs"], "out": str(tmp_path / "run"), "data_dir": str(data), "store": str(tmp_path / "store"),
        "readouts": READOUTS, "scoring_workers": 1, "scoring": "mteb",
    }  # fmt: skip
    run_and_kill(
        runner, given, notes, "job", 6, signal.SIGINT
    )  # its process sleeps on, for ten minutes
    assert all(is_gone(process) for process in set(noted(notes, "job")))
    assert len(list((tmp_path / "run" / "results").rglob("*.safetensors"))) == 5  # those before it
    assert len(evaluate(tiny_model(), **given).scores) == JOBS
    assert len(noted(notes, "job")) == 6
