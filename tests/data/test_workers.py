"""Child processes that answer requests: in order, whatever happens to them, and without surprises
from the current folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from layerscope.data.workers import WorkerPool


def answer(setup: Any, request: Any) -> Any:
    if request == "fail":
        raise ValueError("no such thing")
    if request == "die" and os.getpid() != setup:
        os.kill(os.getpid(), signal.SIGKILL)
    if request == "print":
        print("among the answers")
    return setup, request


def process_number(setup: None, request: Any) -> int:
    return os.getpid()


@pytest.mark.parametrize("workers", [0, 2])
def test_answers_come_in_the_order_of_the_requests(workers: int) -> None:
    with WorkerPool(answer, 7, workers) as pool:
        assert list(pool.map(range(20))) == [(7, i) for i in range(20)]
        assert list(pool.map(["print", 1])) == [(7, "print"), (7, 1)]
        assert list(pool.map([])) == []


def test_workers_do_the_work_and_end_with_the_pool() -> None:
    with WorkerPool(process_number, None, 2) as pool:
        numbers = set(pool.map(range(20)))
        assert os.getpid() not in numbers
        pool.close()  # and again when the block ends
    wait_for_the_end(numbers)


def test_a_worker_that_dies_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    requests = [1, "die", 2, 3]
    with WorkerPool(answer, os.getpid(), 2) as pool:
        for _ in range(2):
            assert list(pool.map(requests)) == [(os.getpid(), request) for request in requests]
    assert caplog.text.count("worker processes stopped") == 1


def test_a_setup_that_cannot_be_sent_is_used_here(caplog: pytest.LogCaptureFixture) -> None:
    setup = lambda: None  # noqa: E731
    with WorkerPool(answer, setup, 2) as pool:
        assert list(pool.map([1, 2])) == [(setup, 1), (setup, 2)]
    assert "this process does their work" in caplog.text


def test_an_error_in_a_worker_is_raised_here() -> None:
    with WorkerPool(answer, 1, 2) as pool, pytest.raises(ValueError, match="no such thing"):
        list(pool.map([1, "fail"]))


SCRIPT = """
from layerscope.data.views import ViewPool, ViewSettings, make_views
print("started", flush=True)
with ViewPool(ViewSettings(2, 0), workers=2) as pool:
    assert pool.make(["some words to change"] * 8) == make_views(["some words to change"] * 8, 2, 0)
    assert pool.pool.count == 2, "they died"
print("done")
"""


def test_a_script_without_a_guard_and_with_files_named_like_modules(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in ("pickle", "struct", "random", "numpy"):
        (folder / f"{name}.py").write_text(
            "raise SystemExit('imported from the current folder')", encoding="utf-8"
        )
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "started\ndone\n", done.stderr
    assert "worker" not in done.stderr


def test_workers_end_when_their_parent_is_killed() -> None:
    script = (
        "import time\nfrom layerscope.data.workers import WorkerPool\n"
        "from layerscope.data.views import answer_views, ViewSettings\n"
        "pool = WorkerPool(answer_views, ViewSettings(2, 0), 2)\n"
        "list(pool.map([['a text']] * 4))\n"
        "print(*pool._executor._processes, flush=True)\ntime.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.kill()
    parent.wait()
    wait_for_the_end(pids)


def wait_for_the_end(numbers: Iterable[int]) -> None:
    """Fail unless all processes have ended within a minute."""
    for _ in range(600):
        if not any(_is_running(number) for number in numbers):
            return
        time.sleep(0.1)
    pytest.fail("a worker is still there")


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
