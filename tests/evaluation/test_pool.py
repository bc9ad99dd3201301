"""The processes that score: how they begin and end."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from layerscope.evaluation import pool
from tests.forking import run_python


def test_a_process_that_is_ended_while_it_starts_up_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """mteb is imported for seconds: an exit raised there would be printed, the system's way of
    ending a process is not."""
    before, threads, seen = signal.getsignal(signal.SIGTERM), torch.get_num_threads(), []
    monkeypatch.setattr(pool, "quiet_mteb", lambda: seen.append(signal.getsignal(signal.SIGTERM)))
    try:
        pool._start()
        with pytest.raises(SystemExit):  # while it scores, files that it has begun are removed
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
        torch.set_num_threads(threads)
    assert seen == [before]


@pytest.mark.skipif(os.name == "nt", reason="signals cannot be blocked there")
def test_ctrl_c_is_for_the_run_alone_also_when_the_tracker_of_semaphores_starts_with_the_first_processes() -> (
    None
):
    done = run_python("""
import multiprocessing, signal
from layerscope.evaluation import pool
from tests.forking import run_python
with pool._children_start():
    multiprocessing.get_context("spawn").Lock()  # the first thing that is tracked
    assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
""")
    assert done.returncode == 0, done.stderr
